"""Operations of one group, one after the other; those that nobody waits for, in a thread."""

import queue
import threading
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor


class ThreadWork(dist.Work):
    """One operation in flight. `wait`, `is_completed` and `get_future` as of any other Work."""

    def __init__(self, tensor: Tensor, thread: threading.Thread | None) -> None:
        super().__init__()
        self._tensor, self._thread = tensor, thread
        self._is_done = threading.Event()
        self._future: torch.futures.Future = torch.futures.Future()

    def run(self, task: Callable[[], None]) -> None:
        """Do the work, in this thread, and keep what went wrong for those who wait."""
        try:
            task()
            self._future.set_result([self._tensor])
        except Exception as error:
            self._future.set_exception(error)
        finally:
            self._is_done.set()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Return True once the tensor holds the sum; raise what went wrong with it."""
        if threading.current_thread() is self._thread and not self.is_completed():
            raise RuntimeError(
                "a callback of one shared-memory all-reduce waits for another, whose turn comes "
                "only after it: chain them with get_future().then, or wait elsewhere"
            )
        if not self._is_done.wait(timeout.total_seconds() or None):
            raise RuntimeError(f"not complete within {timeout.total_seconds():g} s")
        self._future.wait()
        return True

    def is_completed(self) -> bool:
        return self._is_done.is_set()

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        try:
            self._future.value()
        except Exception as error:
            return error
        return None

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[Tensor]:
        return [self._tensor]

    def get_future(self) -> torch.futures.Future:
        return self._future


def completed(tensor: Tensor) -> ThreadWork:
    """Return the Work of an operation that had nothing to do."""
    work = ThreadWork(tensor, None)
    work.run(lambda: None)
    return work


class Line:
    """Tasks in the order in which they were given, one at a time."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._busy = threading.Lock()  # held by whoever runs a task
        self._latest: ThreadWork | None = None
        self._thread: threading.Thread | None = None

    def run(self, tensor: Tensor, task: Callable[[], None]) -> None:
        """Run `task` here, after all that were given before."""
        if self._latest is not None and not self._latest.is_completed():
            self.start(tensor, task).wait()
            return
        with self._busy:
            task()

    def start(self, tensor: Tensor, task: Callable[[], None]) -> ThreadWork:
        """Let a thread run `task`, after all that were given before."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="shared memory", daemon=True)
            self._thread.start()
        work = self._latest = ThreadWork(tensor, self._thread)
        self._tasks.put(lambda: work.run(task))
        return work

    def close(self, last: Callable[[], None]) -> None:
        """Run `last` once all tasks are through, and let the thread end."""
        if self._thread is None:
            last()
            return
        self._tasks.put(last)
        self._tasks.put(None)

    def _serve(self) -> None:
        while (task := self._tasks.get()) is not None:
            with self._busy:
                task()
            del task  # it holds a tensor
