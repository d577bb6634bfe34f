"""How a command ends early: told to stop, or with nobody left to read what it says."""

import os
import signal
import sys


def end_as_interrupted() -> None:
    """Have SIGTERM and SIGHUP raise KeyboardInterrupt in this process. Local; main thread only.

    A signal that is ignored, as nohup does with SIGHUP, or has a handler stays as it is.
    """
    for name in ("SIGTERM", "SIGHUP"):  # Windows has no SIGHUP
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)


def write_no_more() -> None:
    """Send what is still to be written nowhere: at its end Python would try once more. Local."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
