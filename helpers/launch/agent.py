"""torch's elastic agent, run from this process: starts the ranks, waits, stops them all."""

import contextlib
import logging
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from helpers.launch.fork_server import main_stays_here
from helpers.launch.job import DUMP_STACK, Job, RankFiles, read_json
from helpers.launch.worker import run_rank

_AGENT_SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
    if hasattr(signal, name)
)
_AGENT_LOGGERS = (
    "torch.distributed.elastic",
    "torch.distributed.launcher",
    "torch.multiprocessing",
)


def run_ranks(
    job: Job, nproc_per_node: int, timeout_s: float, on_poll: Callable[[], None]
) -> tuple[dict[int, bytes | None] | None, tuple[int, int] | None, bool]:
    """Run `job` on `nproc_per_node` ranks of this host, until all end or one fails.

    Returns (results by rank or None if a rank failed; the rank that failed first and its exit
    code, or None; whether the time was up). No rank runs any more when this returns or raises.
    """
    watch = Watch([job.rank_files(rank) for rank in range(nproc_per_node)], timeout_s, on_poll)
    launch = elastic_launch(_configure(job, nproc_per_node, timeout_s), run_rank)
    results, noticed = None, None
    with _agent_leaves_no_trace(), _own_signal_handlers(), main_stays_here(), watch:
        try:
            results = launch(job)
        except ChildFailedError as error:
            first = next(iter(error.failures.values()))
            noticed = first.local_rank, first.exitcode
    if watch.poll_error is not None:
        raise watch.poll_error
    if watch.is_timed_out:
        results = None  # also where a rank took the end for a wish and left in peace
    if watch.left_rank is not None:
        noticed = watch.left_rank, 0
    return results, noticed, watch.is_timed_out


def _configure(job: Job, nproc_per_node: int, timeout_s: float) -> LaunchConfig:
    log_folder = Path(job.folder) / "agent"
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=nproc_per_node,
        run_id=uuid.uuid4().hex,
        # Port 0 takes a free one; an address, not a name, needs no resolver.
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        rdzv_configs={"timeout": max(1, int(timeout_s))},
        local_addr="127.0.0.1",
        max_restarts=0,
        monitor_interval=0.02,
        start_method="forkserver",
        logs_specs=DefaultLogsSpecs(log_dir=str(log_folder)),
    )


class Watch(threading.Thread):
    """Looks after running ranks: stops them when time is up, and kills what will not stop.

    is_timed_out: whether time was up. left_rank: a rank that ended without a word and without
    an error, which the agent would wait for. poll_error: what `on_poll` raised, if it did.
    """

    AGENT_NOTICES_S = 1.0  # an exit code other than 0 is the agent's to notice
    GRACE_S = 4.0  # between the first failure and SIGKILL for those that still run

    def __init__(
        self, all_files: list[RankFiles], timeout_s: float, on_poll: Callable[[], None]
    ) -> None:
        super().__init__(daemon=True, name="launch-watch")
        self.all_files, self.timeout_s, self.on_poll = all_files, timeout_s, on_poll
        self.is_timed_out, self.left_rank, self.poll_error = False, None, None
        self._over = threading.Event()

    def __enter__(self) -> "Watch":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()
        self._kill(signal.SIGKILL)  # what the ranks themselves started

    def run(self) -> None:
        deadline = time.monotonic() + self.timeout_s
        failed_at = None
        while not self._over.wait(0.05):
            self._poll()
            now = time.monotonic()
            if failed_at is not None:
                self._press(now - failed_at)
            elif self._has_failed():
                failed_at = now
            elif now > deadline:
                self.is_timed_out, failed_at = True, now
                self._stop()

    def _poll(self) -> None:
        try:
            if self.poll_error is None:
                self.on_poll()
        except Exception as error:
            self.poll_error = error

    def _press(self, since_failure_s: float) -> None:
        is_unnoticed = not self.is_timed_out and self.left_rank is None
        if is_unnoticed and since_failure_s > self.AGENT_NOTICES_S and self._silent():
            self.left_rank = self._silent()[0]
            self._stop()
        if since_failure_s > self.GRACE_S:
            self._kill(signal.SIGKILL)

    def _has_failed(self) -> bool:
        return any(files.error.exists() for files in self.all_files) or bool(self._silent())

    def _silent(self) -> list[int]:
        """Ranks whose process is gone although they have told neither an error nor their end."""
        return [
            rank
            for rank, pid in self._pids().items()
            if not _is_alive(pid)
            and not self.all_files[rank].error.exists()
            and not self.all_files[rank].left.exists()
        ]

    def _stop(self) -> None:
        self._kill(DUMP_STACK)
        time.sleep(0.1)
        self._kill(signal.SIGTERM)

    def _pids(self) -> dict[int, int]:
        started = {rank: read_json(files.started) for rank, files in enumerate(self.all_files)}
        return {rank: entry["pid"] for rank, entry in started.items() if entry}

    def _kill(self, signal_number: int) -> None:
        for pid in self._pids().values():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal_number)  # each rank leads a process group of its own


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


_traces = {"launches": 0}  # how many run now, and what the first one found
_traces_lock = threading.Lock()
_SIGNALS_VARIABLE = "TORCHELASTIC_SIGNALS_TO_HANDLE"


@contextlib.contextmanager
def _agent_leaves_no_trace() -> Iterator[None]:
    """Keep the agent's log lines out of the cell, and its variable out of the environment.

    `RankFailed` says what the lines say, shorter. Launches may overlap: the first one saves what
    it found, the last one puts it back.
    """
    with _traces_lock:
        if _traces["launches"] == 0:
            names = [n for n in logging.Logger.manager.loggerDict if n.startswith(_AGENT_LOGGERS)]
            _traces["disabled"] = {name: logging.getLogger(name).disabled for name in names}
            _traces["variable"] = os.environ.get(_SIGNALS_VARIABLE)
            for name in names:
                logging.getLogger(name).disabled = True
        _traces["launches"] += 1
    try:
        yield
    finally:
        with _traces_lock:
            _traces["launches"] -= 1
            if _traces["launches"] == 0:
                for name, was_disabled in _traces["disabled"].items():
                    logging.getLogger(name).disabled = was_disabled
                os.environ.pop(_SIGNALS_VARIABLE, None)
                if _traces["variable"] is not None:
                    os.environ[_SIGNALS_VARIABLE] = _traces["variable"]


@contextlib.contextmanager
def _own_signal_handlers() -> Iterator[None]:
    """Put the process's own handlers back after the agent has set its own (main thread only).

    A signal that stopped the agent is then given to the handler that would have got it:
    an interrupt becomes KeyboardInterrupt, SIGTERM ends the process as it would have.
    """
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in _AGENT_SIGNALS} if is_main else {}
    received = None
    try:
        yield
    except SignalException as error:
        received = error.sigval
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if received is not None:
        signal.raise_signal(received)
        raise KeyboardInterrupt  # a handler that came back: the launch is over all the same
