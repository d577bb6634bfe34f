"""Ask the system without waiting for ever: a file, a program, a function that may hang."""

import contextlib
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KILLED_LIMIT_S = 1.0


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


def said_by(words: Sequence[str], limit_s: float) -> Answer:
    """What a program prints within `limit_s` seconds; it is killed then. Raises nothing. Local."""
    try:
        program = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
    except FileNotFoundError:
        return Answer(trouble=f"{words[0]} is not installed", is_absent=True)
    except OSError as error:
        return Answer(trouble=f"{words[0]}: {error.strerror}")
    try:
        out, errors = program.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return Answer(trouble=f"no answer from {words[0]} within {limit_s:g} s")
    finally:
        _end(program)
    if program.returncode:
        said = (errors.strip() or out.strip()).splitlines()
        return Answer(trouble=said[-1] if said else f"exit code {program.returncode}")
    return Answer(text=out.strip())


def _end(program: subprocess.Popen) -> None:
    """Kill it if it still runs, and do not wait long: one inside a broken driver cannot end."""
    if program.poll() is None:
        program.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.communicate(timeout=KILLED_LIMIT_S)


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
