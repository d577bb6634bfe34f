"""python -m helpers.doctor [--ranks 2] [--port 29500] [--json FILE]; says what to do about it."""

import os
import signal
import sys

from helpers.doctor.command import main

if __name__ == "__main__":
    # c10d warns of each name that it cannot resolve; torch reads this when it is imported.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # A polite kill goes the way of Ctrl-C, so that no rank and no file is left.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
