"""The results as JSON: every run, and what it ran on."""

import dataclasses
import datetime
import json
from collections.abc import Sequence
from pathlib import Path

from helpers.bench_collectives.record import machine
from helpers.whole_file import write_whole

from .rows import Row, verdicts

Runs = Sequence[Sequence[Row]]


def record(what: str, runs: Runs, rounds: int) -> dict:
    """Return all samples, verdicts, hardware, versions and date, as JSON takes them. Local."""
    return {
        "what": what,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine(),
        "backend": "gloo",
        "ranks": 2,
        "rounds": rounds,
        "runs": [{"rows": [_row(row) for row in run], "bounds": _bounds(run)} for run in runs],
    }


def _row(row: Row) -> dict:
    fields = {"setting": row.setting, "name": row.name, "unit": row.unit, "median": row.value}
    return fields | {"samples": list(row.samples)}


def _bounds(run: Sequence[Row]) -> list[dict]:
    return [dataclasses.asdict(verdict) | {"is_met": verdict.is_met} for verdict in verdicts(run)]


def write_json(path: Path, what: str, runs: Runs, rounds: int) -> None:
    """Write the record whole or not at all. Local."""
    write_whole(path, json.dumps(record(what, runs, rounds), indent=1) + "\n")
