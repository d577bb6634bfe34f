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
        self,
        parameters: Mapping[str, nn.Parameter],
        plan: Plan,
        transport: Transport,
        agrees_first: bool,
    ) -> None:
        self._plan, self._transport = plan, transport
        self.slots = make_slots(parameters)
        planned = self._planned(self.slots[::-1])
        if agrees_first:
            planned = self._first_ranks(planned)
        self.buckets = make_buckets(planned, transport.empty)

    def forget(self, is_observing: bool) -> None:
        self.is_observing, self.has_rebuilt = is_observing, False
        self.observed: list[Slot] = []

    def rebuild(self) -> None:
        """Plan anew in the order that the first rank has observed. Every rank must call this.

        Where that changes nothing, the old buckets stay. Buffers that hold no gradient are let
        go of before new ones are made.
        """
        seen = dict.fromkeys([*self.observed, *reversed(self.slots)])
        planned = self._first_ranks(self._planned(list(seen)))
        self.is_observing, self.has_rebuilt, self.observed = False, True, []
        if planned == [bucket.slots for bucket in self.buckets]:
            return
        self.buckets.clear()
        for slot in self.slots:
            slot.bucket = None
            if slot.parameter.grad is not slot.view:
                slot.view = None
        self.buckets += make_buckets(planned, self._transport.empty)

    def _planned(self, slots: list[Slot]) -> list[list[Slot]]:
        """Return the plan for slots in the order in which their gradients become ready.

        Raises ValueError where it leaves a parameter out, or has one twice.
        """
        by_parameter = {id(slot.parameter): slot for slot in slots}
        planned = self._plan([slot.parameter for slot in slots])
        found = sorted(id(parameter) for parameters in planned for parameter in parameters)
        if found != sorted(by_parameter):
            raise ValueError(
                f"the plan holds {len(found)} parameters, expected each of the {len(slots)} "
                "trainable ones once"
            )
        return [[by_parameter[id(p)] for p in parameters] for parameters in planned if parameters]

    def _first_ranks(self, planned: list[list[Slot]]) -> list[list[Slot]]:
        """Return the first rank's plan: ranks with different buckets would mix up their sums."""
        places = [(slot.index, number) for number, slots in enumerate(planned) for slot in slots]
        table = torch.tensor(places, device=self.slots[0].parameter.device)
        dist.broadcast(table, group=self._transport.group, group_src=0)
        by_bucket: dict[int, list[Slot]] = {}
        for index, number in table.tolist():
            by_bucket.setdefault(number, []).append(self.slots[index])
        return list(by_bucket.values())
