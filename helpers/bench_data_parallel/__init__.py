"""DistributedDataParallel beside torch's: `python -m helpers.bench_data_parallel --help`."""

from .command import main

__all__ = ["main"]
