"""What each kernel computes, in a few operations of torch: the judge, and the way on CPUs.

All are local, except `all_reduce_one_shot`. They compute in float32, or in float64 where a
tensor is of float64, and each operation rounds once.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor


def accumulate_(accumulator: Tensor, gradient: Tensor, scale: float = 1.0) -> Tensor:
    """Add scale * gradient to the accumulator: the product is rounded, then the sum."""
    return accumulator.add_(gradient.to(accumulator.dtype) * scale)


def pack(tensors: Sequence[Tensor], views: Sequence[Tensor], scale: float = 1.0) -> None:
    """Write scale * each tensor into its view."""
    for tensor, view in zip(tensors, views, strict=True):
        view.copy_(tensor.to(wide(tensor.dtype)) * scale)


def unpack(views: Sequence[Tensor], tensors: Sequence[Tensor], scale: float = 1.0) -> None:
    """Write scale * each view into its tensor."""
    pack(views, tensors, scale)


def sum_of_squares(tensor: Tensor) -> Tensor:
    """Return the sum of the squares of all elements, of shape []."""
    return tensor.to(wide(tensor.dtype)).square().sum()


def all_reduce_one_shot(tensor: Tensor, group: dist.ProcessGroup | None = None) -> None:
    """Gather what all ranks hold, add it up in rank order, round once. Every rank must call."""
    own = tensor.contiguous()
    held = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(held, own, group=group)
    total = torch.zeros_like(own, dtype=wide(tensor.dtype))
    for addend in held:
        total += addend
    tensor.copy_(total)


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype to compute in."""
    return torch.promote_types(dtype, torch.float32)
