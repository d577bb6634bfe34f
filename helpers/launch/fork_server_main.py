"""Imported by the fork server only: ties its life to the process that started it.

And once the ranks of a first launch have ended, the server loads what every rank that makes an
optimizer or wraps a model would otherwise import for itself, which takes 1 to 2 s of a core. No
first launch waits for it.

A rank starts and ends light: Python's garbage collector leaves alone what it shares with the
server, and what torch's modules have asked for at the end of a process is not done in each rank.
"""

import atexit
import gc
import importlib
import os
import signal
import sys
import tempfile
import weakref

from helpers.launch.fork_server import die_with_parent

POLL_S = 0.2  # how often the server looks whether its ranks have ended
LATE = "torch._dynamo"
COMPILED = "TORCHINDUCTOR_CACHE_DIR"

die_with_parent()


def load_when_idle(*_: object) -> None:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # takes nothing away
    except ChildProcessError:  # no rank is left
        import_late()
    else:
        look_later()


def import_late() -> None:
    """torch makes its folder for compiled code as it is imported: here, none that is not there."""
    is_chosen = COMPILED in os.environ
    os.environ.setdefault(COMPILED, tempfile.gettempdir())
    importlib.import_module(LATE)
    if not is_chosen:
        os.environ.pop(COMPILED, None)


def look_later() -> None:
    signal.setitimer(signal.ITIMER_REAL, POLL_S)


def before_fork() -> None:
    """Spare each rank some 0.1 s of a core, most of it for copies of pages that it shares."""
    gc.freeze()
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        finalizer.atexit = False  # takes torch's operators away one by one; there are hundreds
    if LATE in sys.modules:  # formats the times of compilations, which no rank has seen yet
        atexit.unregister(getattr(sys.modules[LATE].utils, "dump_compile_times", None))


def after_fork_in_server() -> None:
    if os.getpid() == server:
        look_later()


def after_fork_in_rank() -> None:
    """SIGALRM means what it means in any process; timers are not inherited."""
    if os.getppid() == server:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


server = os.getpid()
signal.signal(signal.SIGALRM, load_when_idle)
os.register_at_fork(
    before=before_fork, after_in_parent=after_fork_in_server, after_in_child=after_fork_in_rank
)
