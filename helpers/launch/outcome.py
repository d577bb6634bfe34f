"""How a launch ended: each rank's state, the first cause, and the words for it."""

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from helpers.launch.frames import Frame, is_torch, own_place, read_stack
from helpers.launch.job import RankFiles, read_json

_LOST_PEER = re.compile(
    r"[Cc]onnection (closed|reset)|[Bb]roken pipe|remote process exited|NCCL|has gone|has it ended"
)
_CARRIERS = re.compile(r"\bhelpers[/\\](link|collectives|shared_memory)[/\\]")  # beside torch
_BUILD_PATH = re.compile(r"^\[/[^\]]*\] ")  # where gloo was compiled
_WAITED = re.compile(r"[Tt]imed? ?out")


def is_lost_peer(error: dict) -> bool:
    """Whether an error, as `account.describe` gives it, only says that another rank went away."""
    innermost = error["frames"][-1][0] if error["frames"] else ""
    is_carrier = is_torch(innermost) or bool(_CARRIERS.search(innermost))
    return is_carrier and bool(_LOST_PEER.search(error["message"]))


@dataclass(frozen=True)
class Run:
    """A launch that went well.

    result: the last line of rank 0's stdout that alone is a JSON object, parsed, or None.
    output: what every rank printed, in rank order, each line tagged; the last 1 MB a rank.
    seconds: wall-clock time of the launch.
    """

    result: dict[str, Any] | None
    output: str
    seconds: float


class RankFailed(RuntimeError):
    """A rank failed. The text is one line, `rank 1: ValueError: ... (file:line)`, then the
    frames of the reader's own code; where ranks waited for each other, also where each stood.

    rank, exception_type (also "SystemExit", "SIGKILL", "TimeoutError"), message,
    location ("file:line"), traceback (the text after the first line), output (as in `Run`).
    """

    def __init__(
        self, rank: int, exception_type: str, message: str, location: str, traceback: str = ""
    ) -> None:
        self.rank = rank
        self.exception_type = exception_type
        self.message = message
        self.location = location
        self.traceback = traceback
        self.output = ""
        super().__init__(rank, exception_type, message, location, traceback)

    def __str__(self) -> str:
        first, *rest = self.message.splitlines() or [""]
        head = f"rank {self.rank}: {self.exception_type}: {first} ({self.location})"
        return "\n".join(line for line in (head, *rest, self.traceback) if line)

    def _render_traceback_(self) -> list[str]:
        """What Jupyter shows: the ranks' trouble, not the launcher's own stack."""
        return ["RankFailed: " + str(self)]


@dataclass
class RankState:
    """What the files of one rank say."""

    rank: int
    state: str  # "absent" | "ended" | "leaving" | "raised" | "stopped" | "gone"
    error: dict = field(default_factory=dict)
    frames: list[Frame] = field(default_factory=list)
    signal_name: str = ""

    def __str__(self) -> str:
        if self.state == "stopped":
            shown = [str(frame) for frame in self.shown]
            waits = "" if not self.frames or self.frames[-1].is_shown else self.frames[-1].function
            where = "; ".join(reversed(shown)) or "before its first line"
            return f"rank {self.rank} stood at {where}" + (f" (in {waits})" if waits else "")
        words = {"absent": "had not started", "ended": "had ended", "gone": "was gone"}
        words["leaving"] = "had ended, but for a thread or an exit handler that goes on"
        words["raised"] = f"raised {self.error.get('type')} at {self._own_line()}"
        return f"rank {self.rank} {words[self.state]}"

    @property
    def shown(self) -> list[Frame]:
        """The frames that a reader is shown: no library's, not the launcher's."""
        return [frame for frame in self.frames if frame.is_shown]

    @property
    def says(self) -> tuple[str, str, str]:
        """The error's type and message, and its place."""
        return self.error["type"], self.error["message"], own_place(self.frames)

    def _own_line(self) -> str:
        return str(self.shown[-1]) if self.shown else own_place(self.frames)


def read_state(rank: int, files: RankFiles, home: Mapping[str, str] | None = None) -> RankState:
    """The state of one rank, from its files; call when no rank runs any more.

    `home`: the files of a function that travelled by value, as `frames.code_home` gives them.
    """
    error = read_json(files.error)
    if error:
        frames = [Frame(*frame).at_home(home) for frame in error["frames"]]
        return RankState(rank, "raised", error, frames)
    if files.ended.exists():
        return RankState(rank, "ended" if files.left.exists() else "leaving")
    started = read_json(files.started)
    if not started:
        return RankState(rank, "absent")
    stack = files.stack.read_text(errors="replace")
    frames = [frame.at_home(home) for frame in read_stack(stack, started["main_thread"])]
    if stack.startswith("Fatal Python error: "):
        return RankState(rank, "gone", frames=frames, signal_name=_fatal_signal(stack))
    return RankState(rank, "stopped" if stack else "gone", frames=frames)


def _fatal_signal(stack: str) -> str:
    names = {"Segmentation fault": "SIGSEGV", "Aborted": "SIGABRT", "Bus error": "SIGBUS"}
    names |= {"Floating point exception": "SIGFPE", "Illegal instruction": "SIGILL"}
    return names.get(stack.splitlines()[0].removeprefix("Fatal Python error: "), "SIGABRT")


def failure(
    states: list[RankState], noticed: tuple[int, int] | None, timeout_s: float | None
) -> RankFailed:
    """The first cause among the ranks' states.

    `noticed`: the rank whose end was noticed first, and its exit code (-9: SIGKILL; 0: it left
    without a word). `timeout_s`: the limit, if the launch was stopped for it, else None.
    """
    if timeout_s is not None:
        return _timed_out(states, timeout_s)
    raised = sorted((s for s in states if s.state == "raised"), key=lambda s: s.error["time"])
    own_faults = [s for s in raised if not is_lost_peer(s.error)]
    if own_faults:
        alike = [s for s in own_faults if s.says == own_faults[0].says]
        return _raised(min(alike, key=lambda s: s.rank), states)
    gone = next((s for s in states if s.state == "gone"), None)
    rank, exit_code = noticed or (gone.rank if gone else 0, 0)
    if exit_code < 0:
        return _killed(states[rank], signal.Signals(-exit_code).name)
    if gone and gone.rank != rank and states[rank].state == "raised":
        return _killed(gone, gone.signal_name or "SIGKILL")  # its peer was noticed before it
    if raised and not gone:
        return _raised(raised[0], states)
    return _left_without_a_word(gone or states[rank], exit_code)


def _raised(state: RankState, states: list[RankState]) -> RankFailed:
    lines = [f"  {frame}" for frame in state.shown]
    message = _BUILD_PATH.sub("", state.error["message"])
    if is_lost_peer(state.error) or _WAITED.search(message):
        lines += [str(other) for other in states if other is not state]
    place = own_place(state.frames)
    return RankFailed(state.rank, state.error["type"], message, place, "\n".join(lines))


def _killed(state: RankState, name: str) -> RankFailed:
    words = "ended by a signal"
    if name == "SIGKILL":
        words += " (the system sends this one when memory runs out)"
    lines = [f"  {frame}" for frame in state.shown]
    return RankFailed(state.rank, name, words, own_place(state.frames), "\n".join(lines))


def _left_without_a_word(state: RankState, exit_code: int) -> RankFailed:
    words = f"left with exit code {exit_code} and without a word, as after os._exit"
    return RankFailed(state.rank, "SystemExit", words, own_place([]))


def _timed_out(states: list[RankState], timeout_s: float) -> RankFailed:
    waiting = [s for s in states if s.state not in ("ended", "raised")] or states  # who to name
    words = f"not finished after {timeout_s:g} s"
    lines = "\n".join(str(state) for state in states)
    return RankFailed(waiting[0].rank, "TimeoutError", words, own_place(waiting[0].frames), lines)
