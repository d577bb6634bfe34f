"""A launch that is stopped midway: what was begun is put away before the process ends."""

import contextlib
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path


class Terminated(BaseException):
    """SIGTERM has come. Seen by no caller: the process ends when it has gone all the way up."""


@contextlib.contextmanager
def termination_waits() -> Iterator[None]:
    """Where SIGTERM would end this process at once, let it unwind what is inside first.

    The process then ends by the signal, as it would have; a second one ends it at once. Local; no
    effect where SIGTERM has a handler, or on a thread that is not the main one.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    received = []

    def unwind(number: int, _: object) -> None:
        received.append(number)  # what is raised may be lost, in a destructor for example
        signal.signal(number, signal.SIG_DFL)
        raise Terminated

    signal.signal(signal.SIGTERM, unwind)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if received:
            signal.raise_signal(signal.SIGTERM)


def remove(folder: Path) -> None:
    """Remove a folder on a thread: a second interrupt does not reach it, and its end is awaited."""
    removal = threading.Thread(target=shutil.rmtree, args=(folder,), kwargs={"ignore_errors": True})
    removal.start()
    removal.join()
