"""The command's words, and what each of them may be."""

import argparse
import os
import re
from dataclasses import dataclass
from pathlib import Path

_DESCRIPTION = """\
Says what this machine has and what of it would trouble the book: cores, memory, containers'
limits, network, torch, drivers, GPUs and their links; sums some numbers over ranks with each
backend, under a limit of time, and checks them; says what the book will run here, and for how
long. Starts its ranks itself, sends nothing anywhere, and prints no host's or user's name."""

_EXIT = """\
ok asks for nothing; warn may trouble some runs, bad will; -> says what to do about it

exit code: 0 nothing is bad (warnings are allowed), 1 something is, 2 wrong words here,
3 what it says cannot be written, 130 it was stopped (Ctrl-C, or SIGTERM)"""


@dataclass(frozen=True)
class Command:
    """How many ranks and which port are meant; where the record goes: None, "-" or a file."""

    num_ranks: int
    port: int
    json: Path | str | None


def parse(words: list[str] | None = None) -> Command:
    """Return what the words ask for; say on stderr what is wrong with them, and exit with 2."""
    parser = argparse.ArgumentParser(
        prog="python -m helpers.doctor",
        description=_DESCRIPTION,
        epilog=_EXIT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--ranks", type=_ranks, default=2, metavar="N", help="ranks that you want to start (2)")
    add("--port", type=_port, default=29500, metavar="P", help="torchrun's port (29500, its own)")
    add("--json", type=_file, metavar="FILE", help="write a record; - prints it, and no table")
    found = parser.parse_args(words)
    return Command(found.ranks, found.port, found.json)


def _ranks(text: str) -> int:
    return _number(text, 1, 64)


def _port(text: str) -> int:
    return _number(text, 1, 65535)


def _number(text: str, low: int, high: int) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", text) or not low <= int(text) <= high:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a number, {low} to {high}")
    return int(text)


def _file(text: str) -> Path | str:
    if text == "-":
        return text
    found = Path(text)
    if found.suffix != ".json":
        raise argparse.ArgumentTypeError(f"found {text!r}, expected - or a name with .json")
    if not found.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"no folder {str(found.parent)!r} to write into")
    if found.is_dir() or not os.access(found.absolute().parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"no file can be written as {text!r}")
    return found
