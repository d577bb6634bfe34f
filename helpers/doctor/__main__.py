"""python -m helpers.doctor; it starts two ranks for one small all-reduce."""

import sys

from helpers.doctor.command import main

if __name__ == "__main__":
    sys.exit(main())
