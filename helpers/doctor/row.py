"""One finding: what was looked at, what was found, how good that is, and what to do about it."""

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


def without_home(row: Row) -> Row:
    """The row, its user's folder as ~: a message may name a file there. Local."""
    home = str(Path("~").expanduser())
    return row if home in ("~", "/") else replace(row, found=row.found.replace(home, "~"))


def is_any_bad(rows: Iterable[Row]) -> bool:
    """Whether a verdict is "bad". Local."""
    return any(row.verdict == BAD for row in rows)
