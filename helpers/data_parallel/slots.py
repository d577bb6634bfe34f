"""Each parameter's place in the buckets, and the buckets as they are filled and sent."""

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn

from helpers.buckets import Bucket

Plan = Callable[[list[Tensor]], list[list[Tensor]]]


class Slot:
    """One parameter, and where its gradient lies: `view` is a part of `bucket`'s buffer.

    `index` counts the trainable parameters in the model's order. The slot stays when buckets
    are rebuilt; bucket and view change.
    """

    __slots__ = ("bucket", "index", "name", "parameter", "view")

    def __init__(self, index: int, name: str, parameter: nn.Parameter) -> None:
        self.index, self.name, self.parameter = index, name, parameter


class FilledBucket(Bucket):
    """A bucket on its way: `waiting` holds the slots whose gradients are not in it yet."""

    def __init__(self, index: int, slots: list[Slot]) -> None:
        super().__init__(slot.parameter for slot in slots)
        self.index, self.slots = index, slots
        self.waiting: set[Slot] = set()
        #: Waits for the sum; set when the bucket is sent.
        self.wait: Callable[[], None] = _nothing


def make_slots(named_parameters: Mapping[str, nn.Parameter]) -> list[Slot]:
    named = enumerate(named_parameters.items())
    return [Slot(index, name, parameter) for index, (name, parameter) in named]


def make_buckets(slots: Iterable[Slot], plan: Plan) -> list[FilledBucket]:
    """Return buckets for the slots, given in the order in which their gradients become ready.

    A gradient that lies in an old bucket moves to its new one.
    """
    by_parameter = {id(slot.parameter): slot for slot in slots}
    planned = plan([slot.parameter for slot in by_parameter.values()])
    found = sorted(id(parameter) for parameters in planned for parameter in parameters)
    if found != sorted(by_parameter):
        raise ValueError(
            f"the plan holds {len(found)} parameters, expected each of the "
            f"{len(by_parameter)} trainable ones once"
        )
    buckets = []
    for index, parameters in enumerate(planned):
        bucket = FilledBucket(index, [by_parameter[id(p)] for p in parameters])
        for slot, view in zip(bucket.slots, bucket.views, strict=True):
            _place(slot, bucket, view)
        buckets.append(bucket)
    return buckets


@torch.no_grad()
def _place(slot: Slot, bucket: FilledBucket, view: Tensor) -> None:
    grad = slot.parameter.grad
    if grad is not None and grad is getattr(slot, "view", None):
        slot.parameter.grad = view.copy_(grad)
    slot.bucket, slot.view = bucket, view


def _nothing() -> None:
    pass
