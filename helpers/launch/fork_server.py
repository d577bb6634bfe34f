"""The fork server: one process with torch loaded, from which every rank is forked in no time.

It starts as a fresh interpreter, so it never holds the caller's threads or CUDA context, and
it imports no helper but the launcher: an edited helper is seen by the next launch.
"""

import contextlib
import ctypes
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import forkserver, spawn

PRELOAD = [
    "torch",
    "torch.distributed",
    "torch.distributed.elastic.multiprocessing.api",
    "cloudpickle",
    "helpers.launch.fork_server_main",
]

# Linux ties "die with your parent" to the parent's *thread*. This one thread starts every
# fork server and lives as long as its process, whichever thread asked for the launch.
_keeper = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fork-server-keeper")


def prepare() -> None:
    """Start the fork server if it does not run; return at once, while it loads torch. Local."""
    forkserver.set_forkserver_preload(PRELOAD)
    _keeper.submit(forkserver.ensure_running).result()


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
