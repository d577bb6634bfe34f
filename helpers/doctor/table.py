"""The findings as text for people."""

import shutil
import textwrap
from collections.abc import Sequence

from .advice import ADVICE
from .row import BAD, OK, WARN, Row

_INDENT = 2 + 4 + 2  # margin, verdict, gap


def block(rows: Sequence[Row], width: int | None = None) -> str:
    """The rows of one topic, with what to do under each that is not ok. Local."""
    columns = width or max(60, min(110, shutil.get_terminal_size((100, 24)).columns))
    names = max(len(row.name) for row in rows)
    lines = (line for row in rows for line in _lines(row, names, columns))
    return "\n".join([rows[0].topic, *lines])


def _lines(row: Row, names: int, columns: int) -> list[str]:
    head = f"  {row.verdict:<4}  {row.name:<{names}}  "
    first, *more = row.found.splitlines() or [""]
    lines = _wrapped(_printable(first), head, " " * (_INDENT + names + 2), columns)
    for line in more:
        lines += _wrapped(
            _printable(line.strip()), " " * (_INDENT + 2), " " * (_INDENT + 4), columns
        )
    for advice in row.advice:
        lines += _wrapped(ADVICE[advice], f"{'':{_INDENT}}-> ", " " * (_INDENT + 3), columns)
    return lines


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text.expandtabs())


def _wrapped(text: str, first: str, others: str, columns: int) -> list[str]:
    # Words stay whole: paths and options are there to be copied.
    return textwrap.wrap(
        text,
        columns,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [first.rstrip()]


def summary(rows: Sequence[Row]) -> str:
    """How many findings are good and which are not, in a line or two. Local."""
    num_ok = sum(row.verdict == OK for row in rows)
    words = [f"{num_ok} ok"]
    for verdict in (WARN, BAD):
        names = [f"{row.topic}: {row.name}" for row in rows if row.verdict == verdict]
        words.append(f"{len(names)} {verdict}" + (f" ({'; '.join(names)})" if names else ""))
    return ", ".join(words)
