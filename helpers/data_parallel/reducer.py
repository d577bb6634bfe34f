"""The hot path: from a gradient that is ready to its mean over the ranks.

    backward ── a gradient is accumulated ──► its hook: `_accumulated`
        first of this backward   `_begin`     every bucket waits for all its gradients
        each                     `_collect`   divided, and laid into its bucket
        a bucket is full         `_send`      its all-reduce starts; backward goes on
        the last one is sent     `_finish`    waits; the gradients are means

What is the same in each step is done once: slots.py (places), transport.py (messages).
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn

from helpers.data_parallel.complaints import twice, unfinished
from helpers.data_parallel.slots import FilledBucket, Plan, Slot, make_buckets, make_slots
from helpers.data_parallel.transport import Transport


class Reducer:
    """Averages the gradients of `parameters` (by name, trainable) over the ranks, in buckets.

    It knows nothing of modules: DistributedDataParallel calls `before_forward` and
    `before_backward`, autograd calls the hooks. Buckets are planned in reverse order of the
    parameters first; once a backward has shown the real order, `rebuild` plans anew.
    `as_views`: gradients lie in the buckets; else they are copied back after the sum.
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
    ) -> None:
        self.transport, self._plan = transport, plan
        self._as_views, self.tracks_use, self._skips_unused = as_views, tracks_use, skips_unused
        self.slots = make_slots(parameters)
        self.buckets = make_buckets(reversed(self.slots), plan)
        self.error: Exception | None = None
        #: Waited for at the end of a backward: what hooks on buffers have started.
        self.futures: list[torch.futures.Future] = []
        #: Divides by this instead of the world size, where ranks have joined.
        self.divisor: Callable[[], float] | None = None
        #: How many ranks used each parameter, int32 [number of slots]; the last backward's.
        self.num_users = torch.zeros(len(self.slots), dtype=torch.int32)
        self.reset()
        self._handles = [
            slot.parameter.register_post_accumulate_grad_hook(self._hook(slot))
            for slot in self.slots
        ]

    def reset(self) -> None:
        """Forget what was under way and what was observed."""
        self._syncs = True  # also where a forward went round the wrapper
        self.is_under_way, self._has_finished, self.has_rebuilt = False, True, False
        self.num_reductions = 0
        self._order: list[Slot] = []
        self._used: set[Slot] = set()
        self._unused: set[Slot] = set()

    def remove_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()

    # -- what forward tells ------------------------------------------------------------------

    def before_forward(self, syncs: bool) -> None:
        """Note whether the backward of this forward is to be synchronised; local.

        Raises RuntimeError where the last one ended before all gradients had come.
        """
        if syncs:
            self.check_finished()
            self._syncs, self._has_finished = True, False
        elif self._has_finished:
            self._syncs = False

    def check_finished(self) -> None:
        if self.is_under_way:
            self.fail(unfinished(self, dist.get_rank(self.transport.group)))

    def before_backward(self, unused: Iterable[Slot]) -> None:
        """Take note of the parameters that this backward will not reach; local."""
        self._unused = set(unused)

    def rebuild(self) -> bool:
        """Plan the buckets anew in the order that the first rank observed; return whether.

        Every rank must call this, before each forward; it acts once, after the first reduction.
        """
        if self.has_rebuilt or self.num_reductions == 0 or self.is_under_way:
            return False
        self.has_rebuilt = True
        order = self._agree_on_order()
        planned = self._plan([slot.parameter for slot in order])
        if not _is_same(planned, self.buckets):
            _release(self.slots, self.buckets)
            self.buckets = make_buckets(order, self._plan)
        return True

    # -- what autograd tells -----------------------------------------------------------------

    def _hook(self, slot: Slot) -> Callable[[nn.Parameter], None]:
        def accumulated(parameter: nn.Parameter) -> None:
            if parameter.grad is not None:  # None: backward gave this one no gradient
                self._used.add(slot)
            if self._syncs:
                self.accumulated(slot)
            elif self._as_views:
                _adopt(slot)

        return accumulated

    def accumulated(self, slot: Slot) -> None:
        if not self.is_under_way:
            self._begin()
        self._collect(slot)

    def _begin(self) -> None:
        self.is_under_way, self._num_sent = True, 0
        self._world_size = self._divide_by()
        for bucket in self.buckets:
            bucket.waiting = set(bucket.slots)
        for slot in self._unused:
            self._fill(slot)
        if self._unused:
            self._send_full_buckets()

    def _collect(self, slot: Slot) -> None:
        waiting = slot.bucket.waiting
        if slot not in waiting:
            self.fail(twice(slot))
        self._fill(slot)
        if not self.has_rebuilt:
            self._order.append(slot)
        if not waiting:
            self._send_full_buckets()

    def _fill(self, slot: Slot) -> None:
        """Put this rank's share of the mean into the bucket; a hook gets it undivided."""
        parameter, view = slot.parameter, slot.view
        grad, divides = parameter.grad, not self.transport.has_hook
        if grad is None:
            view.zero_()
        elif grad is view:
            if divides:
                view.div_(self._world_size)
        else:
            if grad.requires_grad:  # backward(create_graph=True)
                grad = grad.detach()
            if divides:
                torch.mul(grad, 1 / self._world_size, out=view)
            else:
                view.copy_(grad)
            if self._as_views:
                parameter.grad = view
        slot.bucket.waiting.discard(slot)

    def _send_full_buckets(self) -> None:
        """Send in order: ranks fill buckets in their own time, but all must send alike."""
        while self._num_sent < len(self.buckets):
            bucket = self.buckets[self._num_sent]
            if bucket.waiting:
                return
            self._num_sent += 1
            if not (self._skips_unused and self._unused.issuperset(bucket.slots)):
                is_last = self._num_sent == len(self.buckets)
                bucket.wait = self.transport.send(bucket, bucket.buffer, is_last)
        self._finish()

    @torch.no_grad()
    def _finish(self) -> None:
        waits = [self._count_users(self._used)] if self.tracks_use else []
        for wait in [*waits, *(bucket.wait for bucket in self.buckets)]:
            wait()
        for future in self.futures:
            future.wait()
        for slot in self.slots:
            self._hand_out(slot)
        self._used.clear()
        self.futures.clear()
        self.is_under_way, self._has_finished = False, True
        self.num_reductions += 1

    def _hand_out(self, slot: Slot) -> None:
        """Give the parameter its mean; one that no rank used keeps what it had."""
        grad = slot.parameter.grad
        if grad is slot.view or (self.tracks_use and not self.num_users[slot.index]):
            return
        if self._as_views:
            slot.parameter.grad = slot.view
        elif grad is None:
            slot.parameter.grad = slot.view.clone()
        else:
            grad.detach().copy_(slot.view)

    # -- between the ranks -------------------------------------------------------------------

    def shadow(self) -> None:
        """Send what one backward sends, all zeros: for a rank that has no more inputs."""
        waits = []
        for bucket in self.buckets:
            is_last = bucket is self.buckets[-1]
            waits.append(self.transport.send(bucket, torch.zeros_like(bucket.buffer), is_last))
        if self.tracks_use:
            waits.append(self._count_users(set()))
        for wait in waits:
            wait()
        self.num_reductions += 1

    def _divide_by(self) -> float:
        if self.divisor is not None:
            return self.divisor()
        return dist.get_world_size(self.transport.group)

    def _count_users(self, used: set[Slot]) -> Callable[[], object]:
        """Start to count the ranks that used each parameter; return what waits for it."""
        flags = [slot in used for slot in self.slots]
        device = self.slots[0].parameter.device
        self.num_users = torch.tensor(flags, dtype=torch.int32, device=device)
        return dist.all_reduce(self.num_users, group=self.transport.group, async_op=True).wait

    def _agree_on_order(self) -> list[Slot]:
        """Return the slots in the first rank's order; those it has not seen come last."""
        seen = dict.fromkeys([*self._order, *reversed(self.slots)])
        device = self.slots[0].parameter.device
        order = torch.tensor([slot.index for slot in seen], device=device)
        dist.broadcast(order, group=self.transport.group, group_src=0)
        self._order = []
        return [self.slots[index] for index in order.tolist()]

    def fail(self, error: Exception) -> NoReturn:
        self.error = error
        raise error


def _adopt(slot: Slot) -> None:
    """Keep the gradient of an unsynchronised backward in the bucket: one copy, not two."""
    grad = slot.parameter.grad
    if grad is not None and grad is not slot.view and not grad.requires_grad:
        slot.parameter.grad = slot.view.copy_(grad)


def _is_same(planned: list[list[Tensor]], buckets: list[FilledBucket]) -> bool:
    old = [[id(parameter) for parameter in bucket.parameters] for bucket in buckets]
    return [[id(parameter) for parameter in parameters] for parameters in planned] == old


def _release(slots: Iterable[Slot], buckets: list[FilledBucket]) -> None:
    """Let go of buffers that hold no gradient now, before the new ones are made."""
    buckets.clear()
    for slot in slots:
        slot.bucket = None
        if slot.parameter.grad is not slot.view:
            slot.view = None
