"""python -m helpers.gate SCRIPT; it starts the ranks itself, 1, 2 and 4 of them unless told."""

import signal
import sys

from helpers.gate.command import main

if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores it
            signal.signal(number, signal.default_int_handler)  # ends with nothing left behind
    sys.exit(main())
