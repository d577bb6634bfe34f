"""The hot path: from a gradient that is ready to its mean over the ranks.

    a gradient is accumulated ──► its hook ──► `_collect`
        the first of a backward   `_begin`    every bucket waits for all its gradients
        each                      filling     divided, and laid into its bucket
        a bucket is full          `_send`     its all-reduce starts, and backward goes on
        the last bucket is sent   `_finish`   waits; every gradient is a mean now

Beside it: layout.py and slots.py (where gradients lie), filling.py (how they get there),
transport.py (how buckets travel),
static_graph.py (a graph that is always the same).
"""

import weakref
from collections.abc import Callable, Iterable, Mapping, Set
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn

from helpers.data_parallel.complaints import twice, unfinished
from helpers.data_parallel.filling import filling_for
from helpers.data_parallel.layout import Layout
from helpers.data_parallel.owners import claim, release
from helpers.data_parallel.slots import Plan, Slot, adopt, hand_out
from helpers.data_parallel.transport import Transport


class Reducer:
    """Averages the gradients of `parameters` (by name, trainable) over the ranks, in buckets.

    It knows nothing of modules: a wrapper calls `before_forward`, autograd calls the hooks.
    as_views: gradients lie in the buckets; else they are copied back after the sum.
    tracks_use: ranks tell each other which gradients they have; one that none has stays as it is.
    """

    is_static = False

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        transport: Transport,
        plan: Plan,
        *,
        as_views: bool,
        tracks_use: bool = False,
        skips_unused: bool = False,
        agrees_first: bool = False,
    ) -> None:
        self.transport, self._as_views = transport, as_views
        self.tracks_use, self._skips_unused = tracks_use, skips_unused
        self._layout = Layout(parameters, plan, transport, agrees_first)
        self.slots, self.buckets = self._layout.slots, self._layout.buckets
        self._filling = filling_for(self.buckets, as_views)
        self.error: Exception | None = None
        #: Waited for at the end of a backward: what hooks on buffers have started.
        self.futures: list[torch.futures.Future] = []
        #: Says by what to divide, in place of the world size, where ranks have no more inputs.
        self.divisor: Callable[[], float] | None = None
        #: How many ranks used each parameter in the last backward, int32 [number of slots]; None
        #: where that is not tracked, or not known yet.
        self.num_users: Tensor | None = None
        self._parameters = [slot.parameter for slot in self.slots]
        # Gradients of a forward that went round the wrapper are averaged too, but not those of
        # another wrapper's forward.
        self._is_alone = True
        others = claim(self._parameters, self)
        self._is_alone = not others
        for other in others:
            other.heed_own_forwards_only()
        self.reset()
        self._handles = [
            parameter.register_post_accumulate_grad_hook(self._hook(slot))
            for parameter, slot in zip(self._parameters, self.slots, strict=True)
        ]

    def reset(self) -> None:
        """Forget what was under way and what was observed."""
        self._syncs = self._is_alone
        self.is_under_way, self._has_finished, self.num_reductions = False, True, 0
        # what is used may change each time, and the order with it
        self._layout.forget(is_observing=self.is_static or not self.tracks_use)
        self._used: set[Slot] = set()
        self._unused: set[Slot] = set()

    def heed_own_forwards_only(self) -> None:
        """Leave alone the gradients of forwards that went round the wrapper: another has them."""
        self._is_alone = False
        if self._has_finished:
            self._syncs = False

    def remove_hooks(self) -> None:
        release(self._parameters, self)
        for handle in self._handles:
            handle.remove()

    # -- told by the wrapper -----------------------------------------------------------------

    def before_forward(self, syncs: bool) -> None:
        """Note whether the backward of this forward is to be synchronised; local.

        Raises RuntimeError where the last one ended before all gradients had come.
        """
        if syncs:
            self.check_finished()
            self._syncs, self._has_finished = True, False
        elif self._has_finished:  # else a forward before this one still waits for its backward
            self._syncs = False

    def expect_none_of(self, unused: Iterable[Slot]) -> None:
        """Take note of the parameters that the next backward will not reach; local."""
        self._unused = set(unused)

    def check_finished(self) -> None:
        if self.is_under_way:
            self.fail(unfinished(self, dist.get_rank(self.transport.group)))

    def rebuild(self) -> bool:
        """Plan the buckets anew in the order that the first rank observed; return whether.

        Every rank must call this, before each forward; it acts once, after the first reduction.
        """
        if not self._layout.is_observing or self.num_reductions == 0 or self.is_under_way:
            return False
        self._layout.rebuild()
        return True

    def shadow(self) -> None:
        """Send what one backward sends, all zeros: for a rank that has no more inputs."""
        zeros = [torch.zeros_like(bucket.buffer) for bucket in self.buckets]
        last = self.buckets[-1]
        waits = [
            self.transport.send(bucket, buffer, bucket is last)
            for bucket, buffer in zip(self.buckets, zeros, strict=True)
        ]
        if self.tracks_use:
            waits.append(self._count_users(set()))
        for wait in waits:
            wait()
        self.num_reductions += 1

    # -- called by autograd ------------------------------------------------------------------

    def _hook(self, slot: Slot) -> Callable[[nn.Parameter], None]:
        reducer = weakref.proxy(self)  # a parameter that is wrapped anew lets the old one go

        def accumulated(parameter: nn.Parameter) -> None:
            grad = parameter.grad  # None where backward came by and had no gradient to give
            if reducer.tracks_use and grad is not None:
                reducer._used.add(slot)
            if reducer._syncs:
                reducer._collect(slot, grad)
            elif reducer._as_views:
                adopt(slot, grad)

        return accumulated

    def __del__(self) -> None:
        if hasattr(self, "_handles"):
            self.remove_hooks()

    def _collect(self, slot: Slot, grad: Tensor | None) -> None:
        if not self.is_under_way:
            self._begin()
        waiting = slot.bucket.waiting
        if slot not in waiting:
            self.fail(twice(slot))
        self._filling.put(slot, grad)
        waiting.remove(slot)
        if self._layout.is_observing:
            self._layout.observed.append(slot)
        if not waiting:
            self._send_full_buckets()

    def _begin(self) -> None:
        self.is_under_way, self._num_sent = True, 0
        divisor = self.divisor() if self.divisor else self.transport.world_size
        self._filling.begin(divisor, divides=not self.transport.has_hook)
        for bucket in self.buckets:
            bucket.waiting = set(bucket.slots)
        if self._unused:
            self._fill_unused()

    def _fill_unused(self) -> None:
        for slot in self._unused:
            self._filling.put(slot, slot.parameter.grad)
            slot.bucket.waiting.remove(slot)
        self._send_full_buckets()

    def _send_full_buckets(self) -> None:
        """Send in order: ranks fill buckets in their own time, but all must send alike."""
        while self._num_sent < len(self.buckets):
            bucket = self.buckets[self._num_sent]
            if bucket.waiting:
                return
            self._num_sent += 1
            if self._skips_unused and self._unused.issuperset(bucket.slots):
                bucket.wait = bool
                continue
            self._filling.complete(bucket)
            is_last = self._num_sent == len(self.buckets)
            bucket.wait = self.transport.send(bucket, bucket.buffer, is_last)
        self._finish()

    @torch.no_grad()
    def _finish(self) -> None:
        waits = [bucket.wait for bucket in self.buckets]
        if self.tracks_use:
            waits.append(self._count_users(self._used))
        for wait in (*waits, *(future.wait for future in self.futures)):
            wait()
        hand_out(self.slots, self._as_views, self._num_users_by_slot())
        self._used.clear()
        self.futures.clear()
        self.is_under_way, self._has_finished = False, True
        self._syncs = self._is_alone
        self.num_reductions += 1

    def _count_users(self, used: Set[Slot]) -> Callable[[], object]:
        """Start to count the ranks that used each parameter; return what waits for it."""
        flags = [slot in used for slot in self.slots]
        device = self.slots[0].parameter.device
        self.num_users = torch.tensor(flags, dtype=torch.int32, device=device)
        return dist.all_reduce(self.num_users, group=self.transport.group, async_op=True).wait

    def _num_users_by_slot(self) -> list[int] | None:
        return self.num_users.tolist() if self.tracks_use else None

    def fail(self, error: Exception) -> NoReturn:
        self.error = error
        raise error
