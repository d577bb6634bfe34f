"""How gradients get into their bucket as this rank's share of the mean."""

import torch
from torch import Tensor

from helpers import kernels
from helpers.data_parallel.slots import FilledBucket, Slot


class Filling:
    """One gradient at a time, as it comes: while a CPU has it in its caches.

    as_views: the gradient's own memory is let go of, and its view in the bucket takes its place.
    """

    def __init__(self, as_views: bool) -> None:
        self._as_views = as_views

    def begin(self, world_size: float, divides: bool) -> None:
        """Start a backward; where it does not divide, a communication hook will."""
        self._world_size, self._divides = world_size, divides
        # a tensor, because a kernel takes it twice as fast as a Python number
        self._share = torch.tensor(1 / world_size, dtype=torch.float64)
        self._keeps_graph = torch.is_grad_enabled()  # in backward(create_graph=True)

    def put(self, slot: Slot, grad: Tensor | None) -> None:
        """Take a gradient that is ready; None stands for zeros."""
        view = slot.view
        if grad is view:
            if self._divides:
                view.div_(self._world_size)
            return
        if grad is None:
            view.zero_()
            return
        if self._keeps_graph:
            grad = grad.detach()
        if self._divides:
            torch.mul(grad, self._share, out=view)
        else:
            view.copy_(grad)
        if self._as_views:
            slot.parameter.grad = view

    def complete(self, bucket: FilledBucket) -> None:
        """Have in the bucket what has been put: called once, before it is sent."""


class PackedFilling(Filling):
    """All gradients of a bucket with one kernel, once it is full: a launch costs a GPU more time
    than to move a small gradient. Until then they stay where backward has left them: whoever
    changes one in place in the middle of backward changes what is sent."""

    def begin(self, world_size: float, divides: bool) -> None:
        super().begin(world_size, divides)
        self._held: dict[FilledBucket, list[tuple[Slot, Tensor]]] = {}

    def put(self, slot: Slot, grad: Tensor | None) -> None:
        if grad is None:
            slot.view.zero_()
        elif grad is not slot.view or self._divides:
            self._held.setdefault(slot.bucket, []).append((slot, grad.detach()))

    def complete(self, bucket: FilledBucket) -> None:
        held = self._held.pop(bucket, [])
        grads, views = [grad for _, grad in held], [slot.view for slot, _ in held]
        kernels.pack(grads, views, 1 / self._world_size if self._divides else 1.0)
        if self._as_views:
            for slot, _ in held:
                slot.parameter.grad = slot.view


def filling_for(buckets: list[FilledBucket], as_views: bool) -> Filling:
    """Return what fills these buckets: with kernels where those would run on all of them."""
    packs = all(kernels.runs_triton(bucket.buffer) for bucket in buckets)
    return (PackedFilling if packs else Filling)(as_views)
