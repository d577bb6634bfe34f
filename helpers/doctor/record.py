"""The findings as JSON."""

import datetime
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from helpers.whole_file import write_whole

from .advice import ADVICE
from .row import Row, is_any_bad


def record(rows: Sequence[Row], seconds: float) -> dict:
    """Return date, verdict and findings, as JSON takes them; no host's or user's name. Local."""
    return {
        "what": "what this machine has, and what of it would trouble the book",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "seconds": round(seconds, 1),
        "is_any_bad": is_any_bad(rows),
        "rows": [_row(row) for row in rows],
    }


def _row(row: Row) -> dict:
    return {
        "topic": row.topic,
        "name": row.name,
        "found": row.found,
        "verdict": row.verdict,
        "advice": {name: ADVICE[name] for name in row.advice},
    }


def write_json(where: Path | str, rows: Sequence[Row], seconds: float) -> None:
    """Write the record to a file, whole or not at all, or for "-" to stdout. Local."""
    text = json.dumps(record(rows, seconds), indent=1) + "\n"
    if where == "-":
        sys.stdout.write(text)
    else:
        write_whole(Path(where), text)
