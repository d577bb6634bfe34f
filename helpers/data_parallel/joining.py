"""Uneven inputs: a rank that has no more sends zeros until the last one has none either."""

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import JoinHook

if TYPE_CHECKING:
    from helpers.data_parallel.distributed import DistributedDataParallel


class DataParallelJoinHook(JoinHook):
    """What a rank that has joined does for each step of the others, and once at the end."""

    def __init__(self, wrapper: "DistributedDataParallel") -> None:
        super().__init__()
        self._wrapper = wrapper

    def main_hook(self) -> None:
        """Answer each message of one forward and backward, in their order."""
        wrapper = self._wrapper
        wrapper._maybe_rebuild()
        if wrapper.will_sync_buffers(after_forward=False):
            wrapper.sync_buffers(is_candidate=False)
        wrapper.require_forward_param_sync = agree_on_sync(wrapper, False)
        if wrapper.require_forward_param_sync:
            wrapper._reducer.shadow()

    def post_hook(self, is_last_joiner: bool) -> None:
        """Give every rank the model of one that trained to the end."""
        wrapper = self._wrapper
        wrapper.broadcast_state(find_rank(wrapper, is_last_joiner), wrapper.forward_sync_buffers)


def agree_on_sync(wrapper: "DistributedDataParallel", wants: bool) -> bool:
    """Return whether any rank's next backward is to be synchronised. Every rank must call this."""
    number = torch.tensor([float(wants)], device=wrapper.device)
    dist.all_reduce(number, group=wrapper.process_group)
    return number.item() > 0


def find_rank(wrapper: "DistributedDataParallel", is_candidate: bool) -> int:
    """Return the highest rank of those that are candidates. Every rank must call this."""
    rank = dist.get_rank(wrapper.process_group) if is_candidate else -1
    highest = torch.tensor([rank], device=wrapper.device)
    dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=wrapper.process_group)
    return int(highest.item())
