"""Replicas of one model that train as one. Chapter 05 builds the first."""

from helpers.data_parallel.distributed import DistributedDataParallel
from helpers.data_parallel.flat import DataParallelFlat
from helpers.data_parallel.naive import DataParallelNaive

__all__ = ["DataParallelFlat", "DataParallelNaive", "DistributedDataParallel"]
