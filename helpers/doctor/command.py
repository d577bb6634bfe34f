"""The command: print each topic as it comes, then the sum of it; write what was asked for."""

import contextlib
import sys
import time

from helpers.stopping import write_no_more

from .arguments import Command, parse
from .examine import examine
from .record import write_json
from .row import Row, is_any_bad, without_names
from .table import block, summary


def main(words: list[str] | None = None) -> int:
    """The command; returns its exit code: 0, or 1 where a finding is bad. Local.

    It starts ranks. 130 where it was stopped, 3 where what it says cannot be written; wrong words
    end it with 2.
    """
    command = parse(words)
    try:
        return _run(command)
    except KeyboardInterrupt:
        print("doctor: stopped", file=sys.stderr)
        return 130
    except OSError as error:  # checks let none out: it comes from writing
        if not isinstance(error, BrokenPipeError):  # who read it has gone, as `| head` does
            print(f"doctor: cannot write: {error.strerror}", file=sys.stderr)
        with contextlib.suppress(OSError, ValueError):
            write_no_more()
        return 3


def _run(command: Command) -> int:
    start_s = time.perf_counter()
    rows: list[Row] = []
    is_quiet = command.json == "-"
    for found in map(_without_names, examine(command)):
        rows += found
        if not is_quiet:
            print(block(found), end="\n\n", flush=True)
    seconds = time.perf_counter() - start_s
    if not is_quiet:
        print(f"{summary(rows)}; {seconds:.0f} s", flush=True)
    if command.json:
        write_json(command.json, rows, seconds)
    return int(is_any_bad(rows))


def _without_names(rows: list[Row]) -> list[Row]:
    return [without_names(row) for row in rows]
