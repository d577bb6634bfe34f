"""python -m helpers.gate SCRIPT; it starts the ranks itself, 1, 2 and 4 of them unless told."""

import sys

from helpers.gate.command import main
from helpers.stopping import end_as_interrupted

if __name__ == "__main__":
    end_as_interrupted()
    sys.exit(main())
