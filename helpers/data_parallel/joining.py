"""Uneven inputs: a rank that has no more sends zeros until the last one has none either."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join, Joinable, JoinHook


class JoinableWrapper(Joinable):
    """What a wrapper needs so that `torch.distributed.algorithms.Join` can hold it."""

    _divides_by_initial_world_size = True
    #: Whose model all ranks took when the last `join` ended.
    _authoritative_rank: int | None = None

    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Join:
        """Return a context for ranks with unequal numbers of inputs, around the loop over them.

        A rank that has no more answers the others' messages with zeros, and takes the model of
        one that trained to the end. Every rank must enter it.
        divide_by_initial_world_size: False divides by the number of ranks that still have inputs.
        throw_on_early_termination: RuntimeError on every rank as soon as one has no more.
        Source: torch.distributed.algorithms.Join. Chapter 11.
        """
        return Join(
            [self],
            enable,
            throw_on_early_termination,
            divide_by_initial_world_size=divide_by_initial_world_size,
        )

    def join_hook(self, **options: Any) -> JoinHook:
        self._divides_by_initial_world_size = options.get("divide_by_initial_world_size", True)
        self._reducer.divisor = None
        self._was_joined = True
        return _ShadowHook(self)

    @property
    def join_device(self) -> torch.device:
        return self.device

    @property
    def join_process_group(self) -> dist.ProcessGroup:
        return self.process_group

    def _tell_joined(self) -> None:
        """Tell ranks without inputs that this one has some; before its messages of a forward."""
        work = Join.notify_join_context(self)
        if work and not self._divides_by_initial_world_size:
            self._reducer.divisor = _sum_of(work)

    def _agree_on_sync(self, wants: bool) -> bool:
        """Return whether any rank's next backward is synchronised. Every rank must call this."""
        number = torch.tensor([float(wants)], device=self.device)
        dist.all_reduce(number, group=self.process_group)
        return number.item() > 0

    def _highest_rank(self, is_candidate: bool) -> int:
        """Return the highest rank of those that are candidates. Every rank must call this."""
        rank = dist.get_rank(self.process_group) if is_candidate else -1
        highest = torch.tensor([rank], device=self.device)
        dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=self.process_group)
        return int(highest.item())


class _ShadowHook(JoinHook):
    """What a rank that has joined does for each step of the others, and once at the end."""

    def __init__(self, wrapper: JoinableWrapper) -> None:
        super().__init__()
        self._wrapper = wrapper

    def main_hook(self) -> None:
        """Answer each message of one forward and backward, in their order."""
        wrapper = self._wrapper
        wrapper._maybe_rebuild()
        if wrapper._syncs_buffers(after_forward=False):
            wrapper._sync_buffers(is_candidate=False)
        wrapper.require_forward_param_sync = wrapper._agree_on_sync(False)
        if wrapper.require_forward_param_sync:
            wrapper._reducer.shadow()

    def post_hook(self, is_last_joiner: bool) -> None:
        wrapper = self._wrapper
        wrapper._authoritative_rank = wrapper._highest_rank(is_last_joiner)
        wrapper._shared.broadcast(
            wrapper.process_group, wrapper._authoritative_rank, wrapper.forward_sync_buffers
        )


def _sum_of(work: dist.Work) -> Callable[[], float]:
    """Return what waits for an all-reduce of one number, and returns it."""
    future = work.get_future()
    return lambda: future.wait()[0].item()
