"""The fork server: one process with torch loaded, from which every rank is forked in no time.

It starts as a fresh interpreter, so it never holds the caller's threads or CUDA context, and
it imports no helper but the launcher: an edited helper is seen by the next launch.
"""

import ctypes
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import forkserver

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
