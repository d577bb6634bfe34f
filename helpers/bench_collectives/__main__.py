"""python -m helpers.bench_collectives --ranks 2 4 --sizes 4M 64M, or torchrun -m with the same."""

import sys

from helpers.bench_collectives.command import main

if __name__ == "__main__":
    sys.exit(main())
