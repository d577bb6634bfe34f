"""The fork server: one process with torch loaded, from which every rank is forked in no time.

It starts as a fresh interpreter, so it never holds the caller's threads or CUDA context, and
it imports no helper but the launcher: an edited helper is seen by the next launch.
"""

import atexit
import contextlib
import ctypes
import queue
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from multiprocessing import forkserver, spawn

PRELOAD = [
    "helpers.launch.fork_server_main",  # first: ties the server's life to ours before torch loads
    "torch",
    "torch.distributed",
    "torch.distributed.elastic.multiprocessing.api",
    "cloudpickle",
]

_asked: "queue.SimpleQueue[Future]" = queue.SimpleQueue()
_keeper = threading.Thread()  # not started: `prepare` starts the first one that is
_starting = threading.Lock()  # held while a keeper starts a fork server
_is_ending = False  # this process
EXIT_LIMIT_S = 5.0


def prepare() -> None:
    """Start the fork server if it does not run; return at once, while it loads torch. Local.

    RuntimeError in a process that was forked from one with a fork server: it is not its own.
    """
    forkserver.set_forkserver_preload(PRELOAD)
    done: Future = Future()
    _asked.put(done)
    _start_keeper()
    try:
        done.result()
    except ChildProcessError:
        raise RuntimeError(
            "found the fork server of the process that this one was forked from; expected a"
            " launch from that one, or from a process that was started by spawn"
        ) from None


def _start_keeper() -> None:
    """See that a thread starts fork servers: one that lives as long as this process.

    Linux ties "die with your parent" to the parent's *thread*, and any thread may ask for a
    launch. An interrupt may come at every step here. A second keeper would do no harm, and none
    is waited for at the end of the process: an executor's thread is, for ever where an interrupt
    came between its start and its entry in the executor's books.
    """
    global _keeper
    if not _keeper.is_alive():  # after a fork of this process, too
        _keeper = threading.Thread(target=_keep, daemon=True, name="fork-server-keeper")
        _keeper.start()


def _keep() -> None:
    while True:
        done = _asked.get()
        with _starting:
            try:
                if _is_ending:
                    raise RuntimeError("found a process that ends; expected one that goes on")
                done.set_result(forkserver.ensure_running())
            except BaseException as error:
                done.set_exception(error)


@atexit.register
def _start_no_more() -> None:
    """See a start to its end, and begin none, before multiprocessing puts its files away."""
    global _is_ending
    has_lock = _starting.acquire(timeout=EXIT_LIMIT_S)
    _is_ending = True
    if has_lock:
        _starting.release()


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends (Linux; elsewhere no effect)."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


_here = threading.local()
_prepare = spawn.get_preparation_data


def _preparation_data(name: str) -> dict:
    data = _prepare(name)
    if getattr(_here, "hides_main", False):
        data.pop("init_main_from_name", None)
        data.pop("init_main_from_path", None)
    return data


@contextlib.contextmanager
def main_stays_here() -> Iterator[None]:
    """Keep processes that this thread starts from running its main module first.

    multiprocessing does so to find functions by name; ours travel by value. Without this, a
    script that launches would run again on every rank, from its first line.
    """
    spawn.get_preparation_data = _preparation_data
    _here.hides_main = True
    try:
        yield
    finally:
        _here.hides_main = False
