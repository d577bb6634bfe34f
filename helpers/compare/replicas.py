"""Whether all ranks of a group hold the same model, bit for bit."""

import math
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from helpers.compare.errors import check_dense, differences, oddity, wide


def assert_replicas_equal(
    module: nn.Module, group: dist.ProcessGroup | None = None, *, buffers: bool = True
) -> None:
    """Raise AssertionError unless all ranks hold the same numbers. Every rank must call this.

    Compares parameters, and buffers unless buffers=False (running statistics of BatchNorm may
    differ between two broadcasts), bit for bit but for the sign of zero; NaN equals NaN. The
    error is the same on every rank: it names the tensor and rank that are farthest from the
    group's first rank, and by how much. Names, shapes and dtypes are compared first.
    Raises ValueError on every rank where a tensor is sparse or on the meta device.
    One broadcast per tensor: for tests, not for every step. Chapter 05 uses it first.
    """
    tensors = dict(module.named_parameters())
    tensors |= dict(module.named_buffers()) if buffers else {}
    kinds = [f"{name} {tuple(x.shape)} {x.dtype} {oddity(x)}" for name, x in tensors.items()]
    _assert_alike([kind.rstrip() for kind in kinds], group)
    check_dense(tensors)
    found = _gather({name: _distance(tensor, group) for name, tensor in tensors.items()}, group)
    worst = [(off, rank, name) for rank, of in enumerate(found) for name, off in of.items() if off]
    if worst:
        off, rank, name = max(worst, key=lambda item: item[0])
        many = len({name for _, _, name in worst})
        raise AssertionError(
            f"{name} differs between ranks: rank {rank} is up to {off:.1e} off rank 0 "
            f"({many} of {len(tensors)} tensors differ)"
        )


def _assert_alike(here: list[str], group: dist.ProcessGroup | None) -> None:
    """Raise where ranks have other tensors: the broadcasts that follow would not match."""
    first, *others = _gather(here, group)
    for rank, there in enumerate(others, start=1):
        if there != first:
            odd = [x for x in [*there, *first] if x not in there or x not in first]
            raise AssertionError(
                f"rank {rank} has other tensors than rank 0: {', '.join(odd) or 'another order'}"
            )


def _gather(value: Any, group: dist.ProcessGroup | None) -> list[Any]:
    values = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values


def _distance(tensor: Tensor, group: dist.ProcessGroup | None) -> float:
    """Return the largest difference to the first rank's tensor, infinite where one is NaN."""
    here = wide(tensor).contiguous()
    first = here.clone()
    dist.broadcast(first, group=group, group_src=0)
    differs = (here != first) & ~(here.isnan() & first.isnan())
    if not differs.any():
        return 0.0
    distances = differences(here, first)[differs]
    return distances.nan_to_num(nan=math.inf, posinf=math.inf).max().item()
