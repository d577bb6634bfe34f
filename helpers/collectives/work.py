"""Steps in the background, and the Work to wait for them."""

import threading
from collections.abc import Callable
from datetime import timedelta

import torch
from torch import Tensor

from helpers import background
from helpers.future_work import FutureWork
from helpers.traffic import carried


class CollectiveWork(FutureWork):
    """One call in flight: `wait`, `is_completed` and `get_future` as of torch's own Work."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__([tensor], [tensor.device] if tensor.is_cuda else None)
        self._has_ended = threading.Event()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Return True once the tensor is ready; raise what went wrong with it.

        On a GPU the current stream waits, not this thread. `timeout` 0: the group's own holds,
        for every message. Raises TimeoutError where there is one and it passes.
        """
        if not self._has_ended.wait(timeout.total_seconds() or None):
            raise TimeoutError(f"not complete after {timeout.total_seconds():g} s")
        self._future.wait()
        return True

    def run(self, steps: Callable[[], None]) -> None:
        """Run the steps here, and keep what they raise for `wait`."""
        try:
            steps()
        except Exception as error:
            self._future.set_exception(error)
        else:
            self._future.set_result(self._tensors)
        self._has_ended.set()


def start(steps: Callable[[], None], tensor: Tensor) -> CollectiveWork:
    """Start the steps in the background and return their Work. Local.

    On the CPU in a thread of their own: however many calls are in flight, none waits for a free
    thread while a peer waits for it. On a GPU on a stream of its own, from this thread: NCCL
    matches messages by the order in which they are enqueued, not by tags.
    """
    work = CollectiveWork(tensor)
    if not tensor.is_cuda:
        run = carried(work.run)
        background.start(lambda: run(steps), "collective by hand")
        return work
    stream = _stream(tensor.device)
    stream.wait_stream(torch.cuda.current_stream(tensor.device))
    with torch.cuda.stream(stream):
        work.run(steps)
    tensor.record_stream(stream)
    return work


_streams: dict[torch.device, "torch.cuda.Stream"] = {}


def _stream(device: torch.device) -> "torch.cuda.Stream":
    if device not in _streams:
        _streams[device] = torch.cuda.Stream(device)
    return _streams[device]
