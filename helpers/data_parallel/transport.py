"""How a full bucket gets to the other ranks: an all-reduce, or a communication hook."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from helpers.data_parallel.slots import FilledBucket

AllReduce = Callable[..., dist.Work]


class GradBucket:
    """What a communication hook is given: torch.distributed.GradBucket's methods.

    torch's own class has no constructor that Python can call. The gradients are this rank's
    sums, not divided: the hook divides.
    """

    def __init__(self, bucket: FilledBucket, buffer: Tensor, is_last: bool) -> None:
        self._bucket, self._buffer, self._is_last = bucket, buffer, is_last

    def index(self) -> int:
        return self._bucket.index

    def buffer(self) -> Tensor:
        return self._buffer

    def set_buffer(self, buffer: Tensor) -> None:
        self._buffer = buffer

    def gradients(self) -> list[Tensor]:
        places = zip(self._bucket.views, self._bucket.offsets, strict=True)
        start = self._buffer.storage_offset()
        return [
            self._buffer.as_strided(view.shape, view.stride(), start + offset)
            for view, offset in places
        ]

    def parameters(self) -> list[nn.Parameter]:
        return list(self._bucket.parameters)

    def is_last(self) -> bool:
        return self._is_last


class Transport:
    """Sends buckets over `group`, by `all_reduce` or by the hook that was registered."""

    def __init__(self, group: dist.ProcessGroup, all_reduce: AllReduce | None) -> None:
        self.group = group
        self._all_reduce = all_reduce or dist.all_reduce
        self._hook: tuple[Callable[..., torch.futures.Future], Any] | None = None
        self.hook_name: str | None = None

    @property
    def world_size(self) -> int:
        return dist.get_world_size(self.group)

    def empty(self, num_elements: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return a flat buffer of zeros for a bucket. Every rank must call this, in like order.

        Where `all_reduce` has an `empty` of its own, it says in which memory it works best.
        """
        make = getattr(self._all_reduce, "empty", None)
        if make is None or device.type != "cpu":
            return torch.zeros(num_elements, dtype=dtype, device=device)
        return make(num_elements, dtype, group=self.group)

    @property
    def has_hook(self) -> bool:
        return self._hook is not None

    def register(self, state: Any, hook: Callable[..., torch.futures.Future]) -> None:
        if self.has_hook:
            raise RuntimeError("a second communication hook, expected one at most")
        self._hook = hook, state
        self.hook_name = getattr(hook, "__qualname__", type(hook).__name__)

    def send(self, bucket: FilledBucket, buffer: Tensor, is_last: bool) -> Callable[[], None]:
        """Start to combine `buffer` ([N], as the bucket's) over the ranks; return what waits.

        Every rank must call this for the same buckets in the same order.
        """
        if self._hook is None:
            return self._all_reduce(buffer, group=self.group, async_op=True).wait
        hook, state = self._hook
        future = hook(state, GradBucket(bucket, buffer, is_last))
        return lambda: _take(future, buffer)


def _take(future: torch.futures.Future, buffer: Tensor) -> None:
    """Wait for what the hook returns, and put it where the gradients' views look."""
    result = future.wait()
    result = result[0] if isinstance(result, list | tuple) else result
    if result.data_ptr() != buffer.data_ptr() or result.dtype != buffer.dtype:
        buffer.copy_(result.view_as(buffer))


def check_hook(hook: Callable[..., torch.futures.Future]) -> None:
    """Raise TypeError or ValueError unless `hook` is `hook(state, bucket) -> Future`."""
    if not callable(hook):
        raise TypeError(f"Communication hook must be callable, found {type(hook).__name__}")
    signature = inspect.signature(hook)
    if "bucket" not in signature.parameters:
        raise ValueError(f"Communication hook: found {signature}, expected (state, bucket)")
    annotation = signature.parameters["bucket"].annotation
    if annotation not in (inspect.Parameter.empty, dist.GradBucket, GradBucket):
        raise ValueError("Communication hook: bucket annotation should be dist.GradBucket.")
    returned = signature.return_annotation
    if returned not in (inspect.Signature.empty, torch.futures.Future[torch.Tensor]):
        raise ValueError(
            "Communication hook: return annotation should be torch.futures.Future[torch.Tensor]."
        )
