"""Copies of one model on every rank of a group: checked to be alike, then made equal."""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils import _pytree as pytree  # not public, and what torch's own wrappers use


@torch.no_grad()
def make_replicas(module: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Give every rank the parameters and buffers of the group's first rank, in place.

    Every rank must call this. One broadcast a tensor, and first one gather of names, shapes and
    dtypes. Raises ValueError on every rank where those differ between ranks: the broadcasts
    would meet wrong ones, and gloo neither sees it nor says so. Built in chapter 05.
    """
    check_alike(itertools.chain(module.named_parameters(), module.named_buffers()), group)
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


def check_alike(
    tensors: Iterable[tuple[str, Tensor]], group: dist.ProcessGroup | None = None
) -> None:
    """Raise ValueError on every rank unless names, shapes and dtypes are the same on all of them.

    Every rank must call this. One gather of what each rank has.
    """
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


def move(tree: Any, device: torch.device) -> Any:
    """Return the same structure with its tensors on `device`. Local."""
    return pytree.tree_map_only(Tensor, lambda x: x.to(device, non_blocking=True), tree)
