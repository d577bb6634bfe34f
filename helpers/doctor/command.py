"""The command: read, try, advise; a table, or JSON."""

import argparse
import dataclasses
import datetime
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from helpers.bench_collectives.record import write_whole
from helpers.doctor.all_reduce import all_reduce_rows
from helpers.doctor.book import book_rows
from helpers.doctor.gpus import gpu_rows, read_gpus
from helpers.doctor.machine import machine_rows, read_machine
from helpers.doctor.network import network_rows
from helpers.doctor.row import BAD, Row
from helpers.doctor.table import table
from helpers.doctor.torch_build import build_rows, read_build


def main(words: list[str] | None = None) -> int:
    """The command; returns its exit code: 0, 1 where something is bad, 130 if stopped. Local."""
    arguments = _parse(words)
    try:
        rows = examine()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    if arguments.json == Path("-"):
        print(as_json(rows), end="")
    else:
        print(table(rows))
        if arguments.json:
            write_whole(arguments.json, as_json(rows))
    return 1 if any(row.verdict == BAD for row in rows) else 0


def _parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m helpers.doctor",
        description="Say what this machine has for training on several processes, what is wrong "
        "with it, and what to do; with one small all-reduce on each backend. Under 20 seconds.",
    )
    parser.add_argument("--json", type=Path, help="a file for the rows; - prints them")
    arguments = parser.parse_args(words)
    path = arguments.json
    if path and path != Path("-") and not path.absolute().parent.is_dir():
        parser.error(f"--json: no folder {path.parent}, expected one to write into")
    return arguments


def examine() -> list[Row]:
    """Return all rows, in the order of the table. Local; it starts ranks."""
    build = read_build()
    return [
        *machine_rows(read_machine(), build.num_gpus),
        *build_rows(build),
        *gpu_rows(read_gpus()),
        *network_rows(),
        *all_reduce_rows(build.num_gpus),
        *book_rows(build.num_gpus),
    ]


def as_json(rows: Sequence[Row]) -> str:
    """Return rows and date as JSON. Local."""
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    return (
        json.dumps({"date": date, "rows": [dataclasses.asdict(r) for r in rows]}, indent=1) + "\n"
    )
