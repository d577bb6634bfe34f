"""Which sample goes to which rank: in training, in evaluation, from a stream. Chapter 06."""

from .distributed import DistributedSampler
from .evaluation import EvaluationSampler
from .stream import ShardedIterable

__all__ = ["DistributedSampler", "EvaluationSampler", "ShardedIterable"]
