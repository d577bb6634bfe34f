"""Imported by the fork server only: ties its life to the process that started it.

And it has the server load, once it has been idle for a moment, what every rank that makes an
optimizer or wraps a model would otherwise import for itself, which takes 1 to 2 s of a core. No
first launch waits for it: the clock starts anew with each rank.
"""

import importlib
import os
import signal

from helpers.launch.fork_server import die_with_parent

IDLE_S = 2.0  # longer than a short first launch takes
LATE = "torch._dynamo"

die_with_parent()


def load(*_: object) -> None:
    importlib.import_module(LATE)


def wait() -> None:
    signal.setitimer(signal.ITIMER_REAL, IDLE_S)


def let_go() -> None:
    """In a rank, SIGALRM means what it means in any process; timers are not inherited."""
    if os.getppid() == server:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def wait_in_server() -> None:
    if os.getpid() == server:
        wait()


server = os.getpid()
signal.signal(signal.SIGALRM, load)
os.register_at_fork(after_in_parent=wait_in_server, after_in_child=let_go)
