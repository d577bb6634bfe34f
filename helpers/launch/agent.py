"""torch's elastic agent, run from this process: starts the ranks, waits, stops them all."""

import contextlib
import logging
import os
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from helpers.launch import rendezvous
from helpers.launch.fork_server import main_stays_here
from helpers.launch.job import Job
from helpers.launch.watch import NobodyLeft, Watch
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
_EVENTS_LOGGER = "torchelastic-events-null"  # made at its first line, so it may not be there yet


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
        except NobodyLeft:
            pass  # the watch tells which
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
        rdzv_backend=rendezvous.BACKEND,
        rdzv_configs={"timeout": max(1, int(timeout_s))},
        local_addr=rendezvous.LOOPBACK,  # an address, not a name, needs no resolver
        max_restarts=0,
        monitor_interval=0.02,
        start_method="forkserver",
        logs_specs=DefaultLogsSpecs(log_dir=str(log_folder)),
    )


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
            names.append(_EVENTS_LOGGER)
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
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(received)
        raise KeyboardInterrupt from None  # without the agent's own exception above it
