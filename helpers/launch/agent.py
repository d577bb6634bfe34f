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

from helpers.launch.job import Job, RankFiles, read_json
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

    Returns (results by rank or None if a rank failed; the rank that the agent saw fail and its
    exit code, or None; whether the time was up). No rank runs any more when this returns or raises.
    """
    watch = Watch([job.rank_files(rank) for rank in range(nproc_per_node)], timeout_s, on_poll)
    launch = elastic_launch(_configure(job, nproc_per_node, timeout_s), run_rank)
    with _quiet_agent(), _own_signal_handlers(), watch:
        try:
            return launch(job), None, False
        except ChildFailedError as error:
            noticed = next(iter(error.failures.values()))
            return None, (noticed.local_rank, noticed.exitcode), watch.is_timed_out


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
    """Looks after running ranks: stops them when time is up, and kills what will not stop."""

    GRACE_S = 4.0  # between the first failure and SIGKILL for those that still run

    def __init__(
        self, all_files: list[RankFiles], timeout_s: float, on_poll: Callable[[], None]
    ) -> None:
        super().__init__(daemon=True, name="launch-watch")
        self.all_files, self.timeout_s, self.on_poll = all_files, timeout_s, on_poll
        self.is_timed_out = False
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
        stop_at = None
        while not self._over.wait(0.05):
            self.on_poll()
            now = time.monotonic()
            if stop_at is None and self._has_failed():
                stop_at = now + self.GRACE_S
            if stop_at is None and now > deadline:
                self.is_timed_out = True
                self._kill(signal.SIGTERM)
                stop_at = now + self.GRACE_S / 2
            if stop_at is not None and now > stop_at:
                self._kill(signal.SIGKILL)

    def _pids(self) -> list[int]:
        started = [read_json(files.started) for files in self.all_files]
        return [entry["pid"] for entry in started if entry]

    def _has_failed(self) -> bool:
        return any(files.error.exists() for files in self.all_files) or not all(
            map(_is_alive, self._pids())
        )

    def _kill(self, signal_number: int) -> None:
        for pid in self._pids():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal_number)  # each rank leads a process group of its own


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@contextlib.contextmanager
def _quiet_agent() -> Iterator[None]:
    """Keep the agent's log lines out of the cell: `RankFailed` says what they say, shorter."""
    before = {name: logging.getLogger(name).disabled for name in _names_below(_AGENT_LOGGERS)}
    for name in before:
        logging.getLogger(name).disabled = True
    try:
        yield
    finally:
        for name, was_disabled in before.items():
            logging.getLogger(name).disabled = was_disabled


def _names_below(parents: tuple[str, ...]) -> list[str]:
    return [name for name in logging.Logger.manager.loggerDict if name.startswith(parents)]


@contextlib.contextmanager
def _own_signal_handlers() -> Iterator[None]:
    """Put the process's own handlers back after the agent has set its own (main thread only).

    A signal that stopped the agent is then given to the handler that would have got it:
    an interrupt becomes KeyboardInterrupt, SIGTERM ends the process as it would have.
    """
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in _AGENT_SIGNALS} if is_main else {}
    told = os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE")
    received = None
    try:
        yield
    except SignalException as error:
        received = error.sigval
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        os.environ.pop("TORCHELASTIC_SIGNALS_TO_HANDLE", None)
        if told is not None:
            os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = told
    if received is not None:
        signal.raise_signal(received)
        raise KeyboardInterrupt  # a handler that came back: the launch is over all the same
