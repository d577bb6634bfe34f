"""The command's words, and what each of them may be."""

import argparse
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path

from . import script

_DESCRIPTION = """\
Trains a few steps of your script in one process on whole batches, then split over micro-batches
and ranks, then stopped and resumed (not tried where that split differs already), and compares
loss, gradients, parameters, buffers and learning rates after each step on each rank. It starts
the ranks itself, on this machine.

"""

_EPILOG = """\
exit code: 0 all the same, 1 something differs, 2 it could not be judged

examples:
  python -m helpers.gate my_training.py
  python -m helpers.gate my_training.py --micro-batches 1,2,4 --ranks 1,2,4 --json gate.json
  python -m helpers.gate my_training.py --dtype float32 --slices 8
  python -m helpers.gate.examples plain_loop my_training.py    writes a script to start from"""


@dataclass(frozen=True)
class Command:
    """What is tried, how, and where the record goes. `tolerance`: None is the dtype's own."""

    script: Path
    micro_batches: tuple[int, ...]
    ranks: tuple[int, ...]
    steps: int
    dtype: str
    tolerance: float | None
    slices: int
    resume: bool
    timeout_s: float
    json: Path | None


def parse(words: list[str] | None = None) -> Command:
    """Return what the words ask for; say on stderr what is wrong with them, and exit with 2."""
    parser = argparse.ArgumentParser(
        prog="python -m helpers.gate",
        description=_DESCRIPTION + script.__doc__.partition("\n\n")[2].strip(),
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("script", type=Path, help="a file of Python with the functions above")
    numbers = {"type": _numbers, "default": (1, 2, 4), "metavar": "N,N"}
    add("--micro-batches", **numbers, help="micro-batches a rank and step (1,2,4)")
    add("--ranks", **numbers, help="ranks, each number a launch (1,2,4)")
    add("--steps", type=_count, default=3, metavar="N", help="steps, a batch each (3)")
    add(
        "--dtype",
        choices=("float64", "float32"),
        default="float64",
        help="of parameters and inputs; in float32 rounding is measured, and allowed 4 times over",
    )
    add(
        "--tolerance",
        type=_part,
        metavar="X",
        help="allowed part of a norm (1e-12 in float64, or rounding)",
    )
    add(
        *("--slices",),
        type=_count,
        default=1,
        metavar="N",
        help="for batches that do not fit: the reference adds N slices, in float64 (1)",
    )
    add("--no-resume", dest="resume", action="store_false", help="no stop half-way")
    add("--timeout", type=_seconds, default=120.0, metavar="S", help="seconds a launch (120)")
    add("--json", type=_file, metavar="FILE", help="write all that was found")
    found = vars(parser.parse_args(words))
    return Command(timeout_s=found.pop("timeout"), **found)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(_count(word) for word in text.split(","))


def _count(text: str) -> int:
    if not re.fullmatch(r"\d{1,4}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a number, 1 or more")
    return int(text)


def _part(text: str) -> float:
    return _number(text, "a part of a norm, more than 0 and below 1", 1)


def _seconds(text: str) -> float:
    return _number(text, "seconds, more than 0", 1e6)


def _number(text: str, expected: str, limit: float) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found < limit:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected {expected}")
    return found


def _file(text: str) -> Path:
    found = Path(text)
    if found.suffix != ".json":
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a name with .json")
    folder = found.absolute().parent
    if not folder.is_dir():
        raise argparse.ArgumentTypeError(f"no folder {str(found.parent)!r} to write into")
    if found.is_dir() or not os.access(found if found.exists() else folder, os.W_OK):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a place that can be written")
    return found
