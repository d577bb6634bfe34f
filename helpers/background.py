"""Threads that work in the background, and that the interpreter waits for before it ends.

A daemon thread that is still in torch's C++ code when the interpreter ends takes the process
down with SIGABRT, after a script that did nothing wrong.
"""

import atexit
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: How long the interpreter's end waits for what is under way; a process group's own timeout
#: ends it at last, but a script that has failed should not hold its job up for so long.
GRACE_S = 5.0

_changed = threading.Condition()
_num_busy = 0


def start(task: Callable[[], object], name: str) -> threading.Thread:
    """Run `task` in a daemon thread of its own, counted as `busy`; return the thread. Local."""

    def run() -> None:
        with busy():
            task()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


@contextmanager
def busy() -> Iterator[None]:
    """Have the interpreter's end wait for this block, for at most GRACE_S. Local."""
    _add(1)
    try:
        yield
    finally:
        _add(-1)


def settle(limit_s: float = GRACE_S) -> bool:
    """Wait until nothing is busy; return whether that is so after at most `limit_s`. Local."""
    with _changed:
        return _changed.wait_for(lambda: _num_busy == 0, limit_s)


def _add(number: int) -> None:
    global _num_busy
    with _changed:
        _num_busy += number
        _changed.notify_all()


def _forget() -> None:
    """A forked process has none of its parent's threads."""
    global _changed, _num_busy
    _changed, _num_busy = threading.Condition(), 0


atexit.register(settle)
os.register_at_fork(after_in_child=_forget)
