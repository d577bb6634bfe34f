"""The eye on running ranks: time is up, a rank is gone, one will not stop."""

import contextlib
import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable

from helpers.launch.job import DUMP_STACK, RankFiles, read_json


class NobodyLeft(Exception):
    """Raised in the thread that launched: every rank has left with exit code 0 and no result."""


class Watch(threading.Thread):
    """Looks after running ranks: stops them when time is up, and kills what will not stop.

    is_timed_out: whether time was up. left_rank: a rank that ended without a word and without
    an error, which the agent would wait for. poll_error: what `on_poll` raised, if it did.
    """

    AGENT_NOTICES_S = 2.0  # an exit code other than 0 is the agent's to notice
    START_S = 60.0  # for the ranks to start: what the fork server loads is not their time
    GRACE_S = 4.0  # between the first failure and SIGKILL for those that still run

    def __init__(
        self, all_files: list[RankFiles], timeout_s: float, on_poll: Callable[[], None]
    ) -> None:
        super().__init__(daemon=True, name="launch-watch")
        self.all_files, self.timeout_s, self.on_poll = all_files, timeout_s, on_poll
        self.is_timed_out, self.left_rank, self.poll_error = False, None, None
        self._over, self._launcher = threading.Event(), threading.get_ident()

    def __enter__(self) -> "Watch":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()
        self._kill(signal.SIGKILL)  # what the ranks themselves started

    def run(self) -> None:
        deadline = time.monotonic() + self.START_S
        failed_at, have_started = None, False
        while not self._over.wait(0.05):
            self._poll()
            now = time.monotonic()
            if not have_started and len(self._pids()) == len(self.all_files):
                deadline, have_started = now + self.timeout_s, True
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
            if len(self._silent()) == len(self.all_files):
                self._end_the_wait()
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

    def _end_the_wait(self) -> None:
        """Without a rank that could still fail, torch's agent would wait for results for ever."""
        raised = ctypes.py_object(NobodyLeft)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._launcher), raised)

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
