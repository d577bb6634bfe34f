"""Copies of one model on every rank of a group: checked to be alike, then made equal."""

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


@torch.no_grad()
def make_replicas(module: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Give every rank the parameters and buffers of the group's first rank, in place.

    Every rank must call this. One broadcast a tensor, and first one gather of names, shapes and
    dtypes. Raises ValueError on every rank where those differ between ranks: the broadcasts
    would meet wrong ones, and gloo neither sees it nor says so. Built in chapter 05.
    """
    _check_alike(module, group)
    for tensor in itertools.chain(module.parameters(), module.buffers()):
        in_place(dist.broadcast, tensor, group=group, group_src=0)


def in_place(collective: Callable[..., Any], tensor: Tensor, **options: Any) -> None:
    """Run the collective on the tensor, whatever its strides. Every rank must call this.

    A backend combines memory, not elements: one rank's transposed tensor would meet another's
    that is not. So what is not contiguous travels as a copy.
    """
    dense = tensor.contiguous()
    collective(dense, **options)
    if dense is not tensor:
        tensor.copy_(dense)


def _check_alike(module: nn.Module, group: dist.ProcessGroup | None) -> None:
    tensors = itertools.chain(module.named_parameters(), module.named_buffers())
    here = [f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in tensors]
    found: list[list[str]] = [[]] * dist.get_world_size(group)
    dist.all_gather_object(found, here, group=group)
    for rank, there in enumerate(found):
        if there != found[0]:
            pairs = itertools.zip_longest(there, found[0], fillvalue="nothing")
            other, first = next(pair for pair in pairs if pair[0] != pair[1])
            raise ValueError(
                f"rank {rank} has {other} where rank 0 has {first}, expected one model on all"
            )
