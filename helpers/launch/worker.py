"""What each rank runs: take over the caller's surroundings, call the code, say how it ended."""

import atexit
import faulthandler
import os
import runpy
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

import cloudpickle
import torch
import torch.distributed as dist

from helpers.launch.fork_server import die_with_parent
from helpers.launch.job import Job, RankFiles, write_json
from helpers.launch.outcome import is_lost_peer

#: Variables that the elastic agent sets for each rank; all others come from the caller.
_AGENT_NAMES = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
_AGENT_PREFIXES = ("LOCAL_", "GROUP_", "ROLE_", "TORCHELASTIC_", "TORCH_NCCL_")

_kept_open = []  # faulthandler writes to a file that must stay open


def run_rank(job: Job) -> bytes | None:
    """Run the job's script or function on this rank; return the function's pickled result.

    Raises SystemExit(1) after writing `error.json` if the code raises.
    """
    files = job.rank_files(int(os.environ["RANK"]))
    _settle(job, files)
    try:
        result = _call(job)
        write_json(files.ended, {})
        _leave()
    except BaseException as error:
        _tell(error, files)
        raise SystemExit(1) from None
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return result


def _settle(job: Job, files: RankFiles) -> None:
    die_with_parent()
    os.setsid()  # an interrupt meant for the launcher must not reach ranks on its own way
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _redirect(files)
    _take_environment(job)
    os.chdir(job.working_folder)
    sys.path[:] = job.module_path
    # The fork server has loaded torch: OMP_NUM_THREADS alone would come too late.
    torch.set_num_threads(job.num_threads)
    dist.set_debug_level_from_env()  # and so would TORCH_DISTRIBUTED_DEBUG
    _leave_stack_when_stopped(files)
    main_thread = f"0x{threading.main_thread().ident:016x}"
    write_json(files.started, {"pid": os.getpid(), "main_thread": main_thread})


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
    os.environ.clear()
    os.environ.update(job.environment)
    os.environ.update(agent)


def _leave_stack_when_stopped(files: RankFiles) -> None:
    # faulthandler works in C: it answers even while the rank waits inside a collective.
    stack = files.stack.open("w")
    _kept_open.append(stack)
    faulthandler.enable(stack)
    faulthandler.register(signal.SIGTERM, stack, all_threads=True, chain=True)


def _call(job: Job) -> bytes | None:
    if job.function is not None:
        function, arguments = cloudpickle.loads(job.function)
        return cloudpickle.dumps(function(*arguments))
    sys.argv = [job.script, *job.arguments]
    sys.path.insert(0, str(Path(job.script).resolve().parent))
    try:
        runpy.run_path(job.script, run_name="__main__")
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            raise
    return None


def _leave() -> None:
    """Do what the end of an interpreter would, since this process lives on a little longer.

    It waits for its peers before it ends; its connections must not, so that the others see a
    rank that left early as they would under torchrun.
    """
    atexit._run_exitfuncs()
    if dist.is_initialized():
        dist.destroy_process_group()


def _tell(error: BaseException, files: RankFiles) -> None:
    write_json(files.error, describe(error))
    if is_lost_peer(str(error)):
        time.sleep(0.5)  # the peer that left may be about to say why: that is the cause to name


def describe(error: BaseException) -> dict:
    """Type, message, frames (file, line, function, text) and time of an exception, for JSON."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) and error.filename:
        name = traceback.FrameSummary(error.filename, error.lineno, "<module>", line=error.text)
        frames.append(name)
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    return {
        "type": type(error).__name__,
        "message": message,
        "frames": [[f.filename, f.lineno, f.name, (f.line or "").strip()] for f in frames],
        "time": time.monotonic(),  # one clock for all processes of a host
    }
