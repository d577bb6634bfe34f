"""One line of the doctor's table: what was looked at, what was found, and what to do about it."""

from dataclasses import dataclass

OK, NOTE, BAD = "ok", "note", "bad"


@dataclass(frozen=True)
class Row:
    """`verdict`: "ok", "note" (it works, and could be better) or "bad" (something will fail)."""

    subject: str
    found: str
    verdict: str = OK
    advice: str = ""
