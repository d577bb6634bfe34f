"""python -m helpers.bench_data_parallel cpu|memory|overlap|plan; it starts two ranks itself."""

import sys

from helpers.bench_data_parallel.command import main

if __name__ == "__main__":
    sys.exit(main())
