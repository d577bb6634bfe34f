"""What a rank takes over before it runs the caller's code: as if torchrun had started it."""

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import sys
import threading

import numpy as np
import torch
import torch.distributed as dist

from helpers.launch.fork_server import die_with_parent
from helpers.launch.job import DUMP_STACK, Job, RankFiles, write_json

#: Variables that the elastic agent sets for each rank; all others come from the caller.
_AGENT_NAMES = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
_AGENT_PREFIXES = ("LOCAL_", "GROUP_", "ROLE_", "TORCHELASTIC_")
#: This one the agent sets where the caller has not chosen.
_AGENT_DEFAULT = "TORCH_NCCL_ASYNC_ERROR_HANDLING"

_kept_open = []  # faulthandler writes to a file that must stay open


def settle(job: Job, files: RankFiles) -> None:
    """Make this forked process the rank of `job`; write `started.json`."""
    die_with_parent()
    _end_unless_alive(job.launcher)
    os.setsid()  # an interrupt meant for the launcher must not reach ranks on its own way
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _leave_stack_when_stopped(files)
    main_thread = f"0x{threading.main_thread().ident:016x}"
    write_json(files.started, {"pid": os.getpid(), "main_thread": main_thread})
    _redirect(files)
    interprets_triton = os.environ.get("TRITON_INTERPRET")
    _take_environment(job)
    if os.environ.get("TRITON_INTERPRET") != interprets_triton:
        _forget_triton()
    os.chdir(job.working_folder)
    sys.path[:] = job.module_path
    _become_fresh(job)


def _end_unless_alive(launcher: int) -> None:
    """End where it died while the fork server was loading, which would then outlive it for us."""
    try:
        os.kill(launcher, 0)
    except ProcessLookupError:
        os._exit(1)


def _leave_stack_when_stopped(files: RankFiles) -> None:
    # faulthandler works in C: it answers even while the rank waits inside a collective.
    stack = files.stack.open("w")
    _kept_open.append(stack)
    faulthandler.enable(stack)
    faulthandler.register(DUMP_STACK, stack, all_threads=True, chain=False)
    faulthandler.register(signal.SIGTERM, stack, all_threads=True, chain=True)


def _redirect(files: RankFiles) -> None:
    for stream, path in ((sys.stdout, files.stdout), (sys.stderr, files.stderr)):
        stream.flush()
        with path.open("ab") as file:
            os.dup2(file.fileno(), stream.fileno())
        # a killed rank must not take its last lines with it
        stream.reconfigure(line_buffering=True, write_through=True)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)


def _take_environment(job: Job) -> None:
    agent = {
        name: value
        for name, value in os.environ.items()
        if name in _AGENT_NAMES or name.startswith(_AGENT_PREFIXES)
    }
    default = {name: os.environ[name] for name in (_AGENT_DEFAULT,) if name in os.environ}
    os.environ.clear()
    os.environ.update(default | job.environment | agent)


def _forget_triton() -> None:
    """Have Triton imported anew: it reads TRITON_INTERPRET as it is imported, which the fork
    server has done on behalf of torch's compiler."""
    for name in list(sys.modules):
        is_library = name.startswith("triton._C")  # in C++, and not to be loaded twice
        if name.split(".")[0] == "triton" and not is_library:
            del sys.modules[name]


def _become_fresh(job: Job) -> None:
    """Undo what a fork shares and a new process does not."""
    # The fork server has loaded torch: these variables alone would come too late.
    torch.set_num_threads(job.num_threads)
    dist.set_debug_level_from_env()
    # Forked ranks would all draw the same "random" numbers. (CUDA's default seed is a constant.)
    torch.default_generator.seed()
    np.random.seed()
    # A DataLoader's workers start as they do in a script of its own.
    multiprocessing.set_start_method(None, force=True)


def flush() -> None:
    """Flush what is left to print; a script may have closed its streams."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(ValueError, OSError):
            stream.flush()
