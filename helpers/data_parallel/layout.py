"""Which gradient lies in which bucket: planned first, then once more in the order observed."""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import nn

from helpers.data_parallel.slots import Plan, Slot, make_buckets, make_slots
from helpers.data_parallel.transport import Transport


class Layout:
    """Slots and buckets of `parameters` (by name). Every rank must construct it.

    The first buckets are planned for the parameters in reverse order: the last layer's gradients
    come first. `observed` takes note of the real order, until `rebuild`.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], plan: Plan, transport: Transport
    ) -> None:
        self._plan, self._transport = plan, transport
        self.slots = make_slots(parameters)
        self.buckets = make_buckets(self.slots[::-1], plan, transport.empty)
        self.forget()

    def forget(self) -> None:
        self.has_rebuilt = False
        self.observed: list[Slot] = []

    def rebuild(self) -> None:
        """Plan anew in the order that the first rank has observed. Every rank must call this.

        Where that changes nothing, the old buckets stay. Buffers that hold no gradient are let
        go of before new ones are made.
        """
        self.has_rebuilt = True
        order = self._agree_on_order()
        self.observed = []
        planned = self._plan([slot.parameter for slot in order])
        if [[id(p) for p in parameters] for parameters in planned] == [
            [id(p) for p in bucket.parameters] for bucket in self.buckets
        ]:
            return
        self.buckets.clear()
        for slot in self.slots:
            slot.bucket = None
            if slot.parameter.grad is not slot.view:
                slot.view = None
        self.buckets += make_buckets(order, self._plan, self._transport.empty)

    def _agree_on_order(self) -> list[Slot]:
        """Return the slots in the first rank's order; those that it has not seen come last."""
        seen = dict.fromkeys([*self.observed, *reversed(self.slots)])
        device = self.slots[0].parameter.device
        indices = torch.tensor([slot.index for slot in seen], device=device)
        dist.broadcast(indices, group=self._transport.group, group_src=0)
        return [self.slots[index] for index in indices.tolist()]
