"""What the ranks tell each other about their gradients: small messages, beside the buckets."""

from collections.abc import Callable, Set

import torch
import torch.distributed as dist
from torch import Tensor

from helpers.data_parallel.slots import Slot


def count_users(
    slots: list[Slot], used: Set[Slot], group: dist.ProcessGroup
) -> tuple[Tensor, Callable[[], object]]:
    """Start to count the ranks that used each parameter: int32 [len(slots)], and what waits for it.

    Every rank must call this.
    """
    flags = [slot in used for slot in slots]
    number = torch.tensor(flags, dtype=torch.int32, device=slots[0].parameter.device)
    return number, dist.all_reduce(number, group=group, async_op=True).wait


def agree_on_order(order: list[Slot], slots: list[Slot], group: dist.ProcessGroup) -> list[Slot]:
    """Return the slots in the first rank's order. Every rank must call this."""
    indices = torch.tensor([slot.index for slot in order], device=slots[0].parameter.device)
    dist.broadcast(indices, group=group, group_src=0)
    return [slots[index] for index in indices.tolist()]
