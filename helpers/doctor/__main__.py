"""python -m helpers.doctor [--ranks 2] [--port 29500] [--json FILE]; says what to do about it."""

import os
import sys

from helpers.doctor.command import main
from helpers.stopping import end_as_interrupted


def open_streams() -> None:
    """Open what is closed of stdin, stdout and stderr: a socket that got such a number would be
    written to, and closed, in its place."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            nothing = os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
            os.set_inheritable(nothing, True)  # ranks print, too
            setattr(sys, name, os.fdopen(nothing, "w" if number else "r"))
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # a message may not fit a narrow locale


if __name__ == "__main__":
    open_streams()
    # c10d warns of each name that it cannot resolve; torch reads this when it is imported.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    end_as_interrupted()
    sys.exit(main())
