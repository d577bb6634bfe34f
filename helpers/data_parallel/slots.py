"""Each parameter's place in the buckets, and the buckets as they are filled and sent."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from helpers import kernels
from helpers.buckets import Bucket

#: Makes a flat buffer of zeros: (number of elements, dtype, device).
Empty = Callable[[int, torch.dtype, torch.device], Tensor]
Plan = Callable[[list[Tensor]], list[list[Tensor]]]


class Slot:
    """One parameter, and where its gradient lies: `view` is a part of `bucket`'s buffer.

    `index` counts the trainable parameters in the model's order. The slot stays when buckets
    are rebuilt; bucket and view change.
    """

    __slots__ = ("bucket", "index", "name", "parameter", "view")

    def __init__(self, index: int, name: str, parameter: nn.Parameter) -> None:
        self.index, self.name, self.parameter = index, name, parameter
        self.bucket: FilledBucket | None = None
        self.view: Tensor | None = None


class FilledBucket(Bucket):
    """A bucket on its way: `waiting` holds the slots whose gradients are not in it yet."""

    def __init__(self, index: int, slots: list[Slot], empty: Empty | None) -> None:
        super().__init__((slot.parameter for slot in slots), empty)
        self.index, self.slots = index, slots
        self.waiting: set[Slot] = set()
        #: Waits for the sum; set when the bucket is sent.
        self.wait: Callable[[], object] = bool


def make_slots(named_parameters: Mapping[str, nn.Parameter]) -> list[Slot]:
    named = enumerate(named_parameters.items())
    return [Slot(index, name, parameter) for index, (name, parameter) in named]


def make_buckets(planned: list[list[Slot]], empty: Empty | None = None) -> list[FilledBucket]:
    """Return a bucket for each list of slots; `empty` makes their buffers.

    A gradient that lies in an old bucket moves to its new one.
    """
    buckets = []
    for index, slots in enumerate(planned):
        bucket = FilledBucket(index, slots, empty)
        for slot, view in zip(slots, bucket.views, strict=True):
            _place(slot, bucket, view)
        buckets.append(bucket)
    return buckets


def adopt(slot: Slot, grad: Tensor | None) -> None:
    """Keep the gradient of an unsynchronised backward in the bucket: one copy, not two."""
    if grad is not None and grad is not slot.view and not grad.requires_grad:
        slot.parameter.grad = slot.view.copy_(grad)


def hand_out(slots: list[Slot], as_views: bool, num_users: list[int] | None) -> None:
    """Give each parameter what its view holds; one that no rank used keeps what it had."""
    to_copy: list[tuple[Tensor, Tensor]] = []
    for slot in slots:
        grad, view = slot.parameter.grad, slot.view
        if grad is view or (num_users and not num_users[slot.index]):
            continue
        if as_views:
            slot.parameter.grad = view
        elif grad is None:
            slot.parameter.grad = view.clone()
        else:
            to_copy.append((view, grad.detach()))
    copy_all(to_copy)


def copy_all(pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Copy the first of each pair to the second: with one kernel, where it would run."""
    if pairs and kernels.runs_triton(pairs[0][0]):
        kernels.unpack(*zip(*pairs, strict=True))
        return
    for source, target in pairs:
        target.copy_(source)


@torch.no_grad()
def _place(slot: Slot, bucket: FilledBucket, view: Tensor) -> None:
    grad = slot.parameter.grad
    if grad is not None and grad is slot.view:
        slot.parameter.grad = view.copy_(grad)
    slot.bucket, slot.view = bucket, view
