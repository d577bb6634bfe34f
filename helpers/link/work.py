"""A Work that completes when its link would have, and the threads that wait for it."""

import math
import queue
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import torch

from helpers.background import GRACE_S, busy
from helpers.future_work import FutureWork


class LinkWork(FutureWork):
    """One operation in flight. `wait`, `is_completed` and `get_future` as of any other Work."""

    def __init__(self, result: list[torch.Tensor], timeout_s: float) -> None:
        super().__init__(result)
        self._timeout_s = timeout_s
        self._is_known = threading.Event()
        self._due_s: float | None = None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Return True once the operation is complete; raise what went wrong with it.

        `timeout`: of this call; 0 leaves it to the group's own, which is how long one waits for
        other ranks, not for the link. Raises RuntimeError where it passes.
        """
        give_up_s = time.monotonic() + (timeout.total_seconds() or math.inf)
        # The group's own timeout ends the watching thread first, with an error that says more.
        is_known = self._is_known.wait(timeout.total_seconds() or self._timeout_s + GRACE_S)
        if is_known and self._due_s is not None:
            # Slept here, because a thread that is woken up by another one is woken up late.
            sleep_until(min(self._due_s, give_up_s))
        if not is_known or (self._due_s or 0.0) > give_up_s:
            seconds = timeout.total_seconds() or self._timeout_s + GRACE_S
            raise RuntimeError(f"the operation is not complete after {seconds:g} s")
        self._future.wait()
        return True

    # Called by the thread that watches the operation.

    def know(self, due_s: float) -> None:
        """The real transfer is through, and all ends have agreed on when it is due."""
        self._due_s = due_s
        self._is_known.set()

    def complete(self) -> None:
        self._future.set_result(self._tensors)

    def fail(self, error: BaseException) -> None:
        self._future.set_exception(error)
        self._is_known.set()


class Crew:
    """Threads that each watch one operation at a time; as many as there are in flight."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []

    def start(self, task: Callable[[], None]) -> None:
        """Run `task` in a thread of its own, an idle one if there is one."""
        if not self._idle.acquire(blocking=False):
            self._threads.append(
                threading.Thread(target=self._work, name="emulated link", daemon=True)
            )
            self._threads[-1].start()
        self._tasks.put(task)

    def dismiss(self, limit_s: float) -> bool:
        """Let each thread end once what it watches is complete; return whether all have, in time.

        May be called again, to wait for longer.
        """
        for _ in self._threads:
            self._tasks.put(None)
        give_up_s = time.monotonic() + limit_s
        for thread in self._threads:
            thread.join(max(0.0, give_up_s - time.monotonic()))
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        return not self._threads

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            with busy():
                task()
            del task  # it holds tensors
            self._idle.release()


def sleep_until(moment_s: float) -> None:
    """Sleep until time.monotonic() has reached this moment; never less."""
    while (left_s := moment_s - time.monotonic()) > 0:
        time.sleep(left_s)
