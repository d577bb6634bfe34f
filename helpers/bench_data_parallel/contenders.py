"""Who is measured: torch's class and ours, on whatever lies underneath."""

from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel

from helpers import shared_memory
from helpers.data_parallel import DistributedDataParallel

from .training import Wrap

TORCH = "torch, views"
CONTROL = "torch, views, again"
OURS = "ours"
OURS_SHARED = "ours, shared memory"
ALONE = "no communication"


def _torch(module: nn.Module) -> nn.Module:
    return TorchDistributedDataParallel(module, gradient_as_bucket_view=True)


def _ours(module: nn.Module) -> nn.Module:
    return DistributedDataParallel(module, gradient_as_bucket_view=True)


def _ours_shared(module: nn.Module) -> nn.Module:
    return DistributedDataParallel(
        module, gradient_as_bucket_view=True, all_reduce=shared_memory.all_reduce
    )


WRAPS: dict[str, Wrap] = {
    TORCH: _torch,
    OURS: _ours,
    OURS_SHARED: _ours_shared,
    CONTROL: _torch,
    ALONE: lambda module: module,
}
