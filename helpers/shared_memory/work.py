"""Operations of one group, one after the other; those that nobody waits for, in a thread."""

import queue
import threading
import weakref
from collections.abc import Callable
from datetime import timedelta

from torch import Tensor

from helpers.background import busy
from helpers.collectives.work import CollectiveWork


class QueuedWork(CollectiveWork):
    """One operation whose turn will come, in a thread that runs one after the other."""

    def __init__(self, tensor: Tensor, thread: threading.Thread | None) -> None:
        super().__init__(tensor)
        self._thread = thread

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Return True once the tensor holds the sum; raise what went wrong with it.

        Raises TimeoutError where there is a timeout and it passes.
        """
        if not self.is_completed():
            refuse_in(self._thread)
        return super().wait(timeout)


def completed(tensor: Tensor) -> QueuedWork:
    """Return the Work of an operation that had nothing to do."""
    work = QueuedWork(tensor, None)
    work.run(lambda: None)
    return work


def refuse_in(thread: threading.Thread | None) -> None:
    """Raise RuntimeError where this is the thread that would have to do what is waited for."""
    if threading.current_thread() is thread:
        raise RuntimeError(
            "a callback of one shared-memory all-reduce waits for another, whose turn comes only "
            "after it: call it with async_op=True, and wait elsewhere"
        )


class Line:
    """Tasks in the order in which they were given, one at a time."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._busy = threading.Lock()  # held by whoever runs a task
        #: Not kept alive, nor is its tensor: the one to do it holds it until it is through.
        self._latest: Callable[[], QueuedWork | None] = _nothing
        self._thread: threading.Thread | None = None

    def run(self, tensor: Tensor, task: Callable[[], None]) -> None:
        """Run `task` here, after all that were given before."""
        refuse_in(self._thread)
        latest = self._latest()
        if latest is not None and not latest.is_completed():
            self.start(tensor, task).wait()
            return
        with self._busy:
            task()

    def start(self, tensor: Tensor, task: Callable[[], None]) -> QueuedWork:
        """Let a thread run `task`, after all that were given before."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="shared memory", daemon=True)
            self._thread.start()
        work = QueuedWork(tensor, self._thread)
        self._latest = weakref.ref(work)
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
            with self._busy, busy():
                task()
            del task  # it holds a tensor


def _nothing() -> None:
    return None
