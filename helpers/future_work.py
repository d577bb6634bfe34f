"""A Work of torch.distributed whose end is a future: what all of ours have in common."""

import torch
import torch.distributed as dist
from torch import Tensor


class FutureWork(dist.Work):
    """One operation in flight on `tensors`; who makes one adds `wait`, and ends the future.

    The future's value is the list of tensors, the form that communication hooks take.
    """

    def __init__(self, tensors: list[Tensor], devices: list[torch.device] | None = None) -> None:
        super().__init__()
        self._tensors = tensors
        self._future = torch.futures.Future(devices=devices or [])

    def is_completed(self) -> bool:
        return self._future.done()

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """Return what went wrong; None while the operation is under way, or where it went well."""
        if self.is_completed():
            try:
                self._future.value()
            except Exception as error:
                return error
        return None

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[Tensor]:
        return self._tensors

    def get_future(self) -> torch.futures.Future:
        return self._future
