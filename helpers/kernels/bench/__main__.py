"""python -m helpers.kernels.bench; it starts its ranks itself."""

import sys

from helpers.kernels.bench.command import main

if __name__ == "__main__":
    sys.exit(main())
