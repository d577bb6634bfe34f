"""Ask the system without waiting for ever: a file, a program, a function that may hang."""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

KILLED_LIMIT_S = 1.0
MOST_BYTES, MOST_LETTERS = 2**20, 300


class NoAnswer(Exception):
    """A function has not returned within its limit. Local."""


@dataclass(frozen=True)
class Answer:
    """What a program said: `text` where it ended well, else `trouble` in one line."""

    text: str = ""
    trouble: str = ""
    is_absent: bool = False


def text_of(path: Path | str) -> str:
    """The text of a small file, or "" where it cannot be read. Local."""
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""


def limit_of(name: str) -> int | None:
    """This process's limit, RLIMIT_NOFILE for example; None: none, or not known here. Local."""
    try:
        import resource  # Windows has none
    except ImportError:
        return None
    soft, _ = resource.getrlimit(getattr(resource, name))
    return None if soft == resource.RLIM_INFINITY else soft


def said_by(words: Sequence[str], limit_s: float) -> Answer:
    """What a program prints within `limit_s` seconds; it is killed then, and what it has started
    is killed in any case. Raises nothing. Local."""
    try:
        program = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a group of its own, to be killed whole
        )
    except FileNotFoundError:
        return Answer(trouble=f"{words[0]} is not installed", is_absent=True)
    except OSError as error:
        return Answer(trouble=f"{words[0]}: {error.strerror}")
    heard: list[list[bytes]] = [[], []]
    try:
        threads = [
            _listen(*pair) for pair in zip((program.stdout, program.stderr), heard, strict=True)
        ]
        program.wait(limit_s)
    except subprocess.TimeoutExpired:
        return Answer(trouble=f"no answer from {words[0]} within {limit_s:g} s")
    finally:
        _end(program)
    for thread in threads:
        thread.join(KILLED_LIMIT_S)
    return _answer(words[0], program.returncode, *map(b"".join, heard))


def _listen(stream: IO[bytes], heard: list[bytes]) -> threading.Thread:
    """Gather what comes, on a thread; stop listening to a flood, which ends who writes it."""

    def listen() -> None:
        with stream, contextlib.suppress(OSError, ValueError):
            while sum(map(len, heard)) < MOST_BYTES and (piece := stream.read1()):
                heard.append(piece)

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    return thread


def _answer(program: str, code: int, out: bytes, errors: bytes) -> Answer:
    if max(len(out), len(errors)) >= MOST_BYTES:
        return Answer(trouble=f"{program} says more than {MOST_BYTES} bytes")
    if code:
        said = (errors.strip() or out.strip()).decode(errors="replace").splitlines()
        return Answer(trouble=one_line(said[-1]) if said else f"exit code {code}")
    return Answer(text=out.decode(errors="replace").strip())


def one_line(text: str) -> str:
    """The text as fit for a table: printable, and not long. Local."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= MOST_LETTERS else f"{line[:MOST_LETTERS]} ..."


def _end(program: subprocess.Popen) -> None:
    """Kill it and all that it started, and do not wait long: a broken driver lets none end."""
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):  # not on Windows
            os.killpg(program.pid, signal.SIGKILL)
        else:
            program.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        program.wait(KILLED_LIMIT_S)


def within(limit_s: float, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return `function(*arguments)`, or raise what it raises; NoAnswer after `limit_s`. Local.

    It runs on a thread, which is left behind where it hangs and ends with this process.
    """
    outcome: list[tuple[bool, Any]] = []

    def call() -> None:
        try:
            outcome.append((True, function(*arguments)))
        except BaseException as error:
            outcome.append((False, error))

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(limit_s)
    if not outcome:
        raise NoAnswer(f"no answer within {limit_s:g} s")
    is_result, value = outcome[0]
    if is_result:
        return value
    raise value
