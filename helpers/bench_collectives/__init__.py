"""An all-reduce table in the manner of nccl-tests: `python -m helpers.bench_collectives --help`."""

from .command import main

__all__ = ["main"]
