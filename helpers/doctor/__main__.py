"""python -m helpers.doctor [--ranks 2] [--port 29500] [--json FILE]; says what to do about it."""

import signal
import sys

from helpers.doctor.command import main

if __name__ == "__main__":
    # A polite kill goes the way of Ctrl-C, so that no rank and no file is left.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
