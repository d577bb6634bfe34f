"""One finding: what was looked at, what was found, how good that is, and what to do about it."""

import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from .advice import ADVICE

OK, WARN, BAD = "ok", "warn", "bad"


@dataclass(frozen=True)
class Row:
    """A finding. `advice`: names in `ADVICE`, none where the verdict is "ok".

    ValueError: a verdict without advice, advice with "ok", an unknown name.
    """

    topic: str
    name: str
    found: str
    verdict: str = OK
    advice: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.verdict not in (OK, WARN, BAD):
            raise ValueError(f"found verdict {self.verdict!r}, expected ok, warn or bad")
        if (self.verdict == OK) == bool(self.advice):
            raise ValueError(f"{self.name}: found {self.verdict!r} with advice {self.advice}")
        if unknown := [name for name in self.advice if name not in ADVICE]:
            raise ValueError(f"{self.name}: no advice is called {unknown}")


def without_names(row: Row) -> Row:
    """The row, users' folders as ~ and this host as "this host": a message may name them. Local."""
    home, host = str(Path("~").expanduser()), re.escape(socket.gethostname())
    found = row.found if home in ("~", "/") else row.found.replace(home, "~")
    found = re.sub(r"/(home|Users)/[\w.-]+", "~", found)
    if host not in ("", "localhost"):
        found = re.sub(rf"(?<![\w.-]){host}(?![\w-])", "this host", found)
    return replace(row, found=found)


def is_any_bad(rows: Iterable[Row]) -> bool:
    """Whether a verdict is "bad". Local."""
    return any(row.verdict == BAD for row in rows)
