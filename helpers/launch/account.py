"""What a rank tells of the exception that ended it."""

import time
import traceback
from typing import Any

MAX_MESSAGE = 4_000  # characters: enough for any message that is read
MAX_FRAMES = 20


def describe(error: BaseException) -> dict[str, Any]:
    """Type, message, frames (file, line, function, text) and time of an exception, for JSON."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) and error.filename:
        frames.append(
            traceback.FrameSummary(error.filename, error.lineno, "<module>", line=error.text)
        )
    if len(frames) > MAX_FRAMES:  # a recursion
        frames = [*frames[: MAX_FRAMES // 2], *frames[-MAX_FRAMES // 2 :]]
    return {
        "type": type(error).__name__,
        "message": "\n".join([_message(error), *_more(error)])[:MAX_MESSAGE],
        "frames": [[f.filename, f.lineno, f.name, (f.line or "").strip()] for f in frames],
        "time": time.monotonic(),  # one clock for all processes of a host
    }


def _message(error: BaseException) -> str:
    try:
        text = error.msg if isinstance(error, SyntaxError) else str(error)
    except Exception as failure:
        text = f"(its message raises {type(failure).__name__})"
    return text.encode("utf-8", "backslashreplace").decode()  # a lone surrogate cannot be printed


def _more(error: BaseException) -> list[str]:
    """Notes, the members of a group, and what the exception was raised from, a line each."""
    lines = list(getattr(error, "__notes__", ()))
    for member in getattr(error, "exceptions", ()):
        lines.append(f"with {type(member).__name__}: {_message(member)}")
    cause = error.__cause__
    while cause is not None:
        lines.append(f"from {type(cause).__name__}: {_message(cause)}")
        cause = cause.__cause__
    return lines
