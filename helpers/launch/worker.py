"""What each rank runs: settle in, call the caller's code, say how it ended."""

import atexit
import os
import runpy
import sys
import threading
import time
from pathlib import Path

import cloudpickle
import torch.distributed as dist

from helpers.launch.account import describe
from helpers.launch.job import Job, RankFiles, write_json
from helpers.launch.outcome import is_lost_peer
from helpers.launch.surroundings import flush, settle


def run_rank(job: Job) -> bytes | None:
    """Run the job's script or function on this rank; return the function's pickled result.

    Raises SystemExit(1) after writing `error.json` if the code raises.
    """
    files, pid = job.rank_files(int(os.environ["RANK"])), os.getpid()
    try:
        settle(job, files)
        result = _call(job)
        write_json(files.ended, {})
        _leave()
        write_json(files.left, {})
    except BaseException as error:
        if os.getpid() == pid:  # not a process that the script has forked
            _tell(error, files)
        raise SystemExit(1) from None
    finally:
        flush()
    return result


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
    threading._shutdown()  # ends the pools of concurrent.futures, then waits for all threads
    atexit._run_exitfuncs()
    if dist.is_initialized():
        dist.destroy_process_group()


def _tell(error: BaseException, files: RankFiles) -> None:
    account = describe(error)
    write_json(files.error, account)
    # Where all ranks fail alike, all get to say so, and the lowest is named on every run. A lost
    # peer may be about to say why it left: that is the cause to name.
    time.sleep(0.5 if is_lost_peer(account) else 0.15)
