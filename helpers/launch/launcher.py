"""`run` and `run_function`: a script or a function on several ranks of this host."""

import os
import re
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cloudpickle

from helpers.launch import fork_server
from helpers.launch.frames import code_home
from helpers.launch.job import Job, RankFiles
from helpers.launch.outcome import Run, failure, read_state
from helpers.launch.output import Echo, last_text, rank_text, read_output, read_report, tagged
from helpers.launch.termination import remove, termination_waits

MAX_TIMEOUT_S = 1e6

#: Variables that Python and torch read when they start: the fork server has done so already.
READ_AT_START = {
    "PYTHONPATH",
    "PYTHONHASHSEED",
    "PYTHONWARNINGS",
    "TORCH_LOGS",
    "TORCH_CPP_LOG_LEVEL",
}


def run(
    script: str | os.PathLike,
    *arguments: object,
    nproc_per_node: int = 2,
    timeout_s: float = 120.0,
    env: Mapping[str, str] | None = None,
) -> Run:
    """Run a script on `nproc_per_node` ranks and return its `Run`; local, from one process.

    The script sees what torchrun gives it: torchrun's variables, its own folder on sys.path,
    the caller's working folder and environment (`env` comes on top), an empty stdin.
    OMP_NUM_THREADS is cores // ranks unless set. Random numbers are seeded afresh on each rank.
    What Python and torch read when they start (`READ_AT_START`) stays as it was then.

    Raises RankFailed as soon as a rank fails, all others being stopped, or after `timeout_s`
    seconds (the default is generous for a cell; a hang shows where each rank stands);
    FileNotFoundError without the script; ValueError for ranks < 1, a time-out that is no number
    of seconds, a variable in `env` that is no string or would come too late.

    Source: torch.distributed.launcher (elastic agent). Built in chapter 01.
    """
    return run_and_echo(script, arguments, nproc_per_node, timeout_s, env, write=None)


def run_and_echo(
    script: str | os.PathLike,
    arguments: tuple[object, ...],
    nproc_per_node: int,
    timeout_s: float,
    env: Mapping[str, str] | None,
    write: Callable[[str], Any] | None,
) -> Run:
    """`run`, giving every rank's lines but the report to `write`: rank 0's as they come."""
    if not Path(script).is_file():
        raise FileNotFoundError(f"no script {os.fspath(script)!r} in the working folder")
    words = tuple(str(argument) for argument in arguments)
    work = {"script": os.fspath(script), "arguments": words}
    _, completed = _launch(work, nproc_per_node, timeout_s, env, write)
    return completed


def run_function(
    function: Callable[..., Any],
    *arguments: Any,
    nproc_per_node: int = 2,
    timeout_s: float = 60.0,
    env: Mapping[str, str] | None = None,
) -> list[Any]:
    """Call `function(*arguments)` on every rank and return the results by rank; local.

    The function, its arguments and results travel by cloudpickle, so a function of a notebook
    cell works. It opens its own `process_group()`. What it prints is not shown; a failure is
    raised as in `run`. The default of 60 s suits a test.
    """
    work = {"function": cloudpickle.dumps((function, arguments))}
    home = code_home(function)
    results, _ = _launch(work, nproc_per_node, timeout_s, env, write=None, home=home)
    return [cloudpickle.loads(results[rank]) for rank in range(nproc_per_node)]


def _launch(
    work: dict[str, Any],
    nproc_per_node: int,
    timeout_s: float,
    env: Mapping[str, str] | None,
    write: Callable[[str], Any] | None,
    home: Mapping[str, str] | None = None,
) -> tuple[dict[int, bytes | None], Run]:
    _check(nproc_per_node, timeout_s, env)
    # The name comes first: an interrupt between a folder's making and its name would leave it.
    folder = Path(tempfile.gettempdir()) / f"launch-{secrets.token_hex(8)}"
    with termination_waits():
        try:
            folder.mkdir(mode=0o700)
            return _launch_in(folder, work, nproc_per_node, timeout_s, env, write, home)
        finally:
            remove(folder)


def _launch_in(
    folder: Path,
    work: dict[str, Any],
    nproc_per_node: int,
    timeout_s: float,
    env: Mapping[str, str] | None,
    write: Callable[[str], Any] | None,
    home: Mapping[str, str] | None,
) -> tuple[dict[int, bytes | None], Run]:
    start = time.perf_counter()
    fork_server.prepare()
    # imported while the fork server loads torch too: the first launch waits for one, not both
    from helpers.launch.agent import run_ranks

    job = _make_job(folder, nproc_per_node, env, work)
    all_files = [job.rank_files(rank) for rank in range(nproc_per_node)]
    for files in all_files:
        files.folder.mkdir()
    echo = Echo(0, all_files[0].stdout, write) if write else None
    poll = echo.poll if echo else lambda: None
    results, noticed, is_timed_out = run_ranks(job, nproc_per_node, timeout_s, poll)
    if echo:
        _write_rest(echo, all_files)
    output = read_output(all_files)
    if results is None:
        states = [read_state(rank, files, home) for rank, files in enumerate(all_files)]
        failed = failure(states, noticed, timeout_s if is_timed_out else None)
        failed.output = output
        raise failed
    report = read_report(all_files[0].stdout)
    return results, Run(report, output, time.perf_counter() - start)


def _write_rest(echo: Echo, all_files: list[RankFiles]) -> None:
    echo.poll(is_over=True)
    echo.write(tagged(0, last_text(all_files[0].stderr)))
    for rank, files in enumerate(all_files[1:], start=1):
        echo.write(tagged(rank, rank_text(files)))


def _check(nproc_per_node: int, timeout_s: float, env: Mapping[str, str] | None) -> None:
    if sys.platform == "win32":
        raise RuntimeError("several ranks need Linux (or macOS): on Windows, use WSL")
    if not isinstance(nproc_per_node, int) or nproc_per_node < 1:
        raise ValueError(f"nproc_per_node is {nproc_per_node!r}; expected a number, 1 or more")
    if not (isinstance(timeout_s, int | float) and 0 < timeout_s < MAX_TIMEOUT_S):
        raise ValueError(f"timeout_s is {timeout_s!r}; expected seconds, up to {MAX_TIMEOUT_S:g}")
    for name, value in (env or {}).items():
        if not isinstance(value, str):
            raise ValueError(f"env[{name!r}] is {value!r}; expected a string")
        if name in READ_AT_START:
            raise ValueError(f"{name} is read before ranks are forked; use torchrun in a terminal")


def _make_job(
    folder: Path, nproc_per_node: int, env: Mapping[str, str] | None, work: dict[str, Any]
) -> Job:
    environment = {**os.environ, **(env or {})}
    num_cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    environment.setdefault("OMP_NUM_THREADS", str(max(1, num_cores // nproc_per_node)))
    # One host: its ranks talk over loopback, also where the host's name means nothing.
    loopback = "lo" if sys.platform == "linux" else "lo0"
    environment.setdefault("GLOO_SOCKET_IFNAME", loopback)
    return Job(
        folder=str(folder),
        working_folder=os.getcwd(),
        environment=environment,
        module_path=list(sys.path),
        num_threads=_num_threads(environment["OMP_NUM_THREADS"]),
        launcher=os.getpid(),
        **work,
    )


def _num_threads(setting: str) -> int:
    first = setting.split(",")[0].strip()  # one number for each level of nesting
    if not re.fullmatch("[0-9]{1,6}", first) or int(first) < 1:
        raise ValueError(f"OMP_NUM_THREADS is {setting!r}; expected a number of threads")
    return int(first)
