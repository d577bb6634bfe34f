"""How far apart tensors are, whether all ranks hold one model, and whether they train as one."""

from helpers.compare.errors import RelativeError, gradients, relative_error
from helpers.compare.replicas import assert_replicas_equal
from helpers.compare.training import assert_same_training

__all__ = [
    "RelativeError",
    "assert_replicas_equal",
    "assert_same_training",
    "gradients",
    "relative_error",
]
