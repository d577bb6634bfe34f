"""The command's words, and what each of them may be."""

import argparse
import re
from dataclasses import dataclass
from pathlib import Path

MEASUREMENTS = ("cpu", "memory", "overlap", "plan")

_DESCRIPTION = """\
Measures our DistributedDataParallel beside PyTorch's, on two ranks that it starts itself (gloo,
on the CPU), and holds each figure against its bound:

  cpu      CPU time of a training step, as a ratio to torch's, small model and large
  memory   peak bytes beyond the parameters, two micro-batches under no_sync, as a ratio to torch's
  overlap  a step of emulated compute on three emulated links: to the lower bound, and to torch's
  plan     plan_buckets(link=...) against the best of a sweep of caps, on the same three links

Every run is printed with all its ratios; a bound that is missed is reported as missed."""

_EXAMPLES = """\
examples:
  python -m helpers.bench_data_parallel cpu
  python -m helpers.bench_data_parallel overlap --rounds 3 --json overlap.json"""


@dataclass(frozen=True)
class Command:
    """What is measured, how often, and where the record goes. `rounds`: None is its default."""

    what: str
    rounds: int | None
    runs: int
    json: Path | None


def parse(words: list[str] | None = None) -> Command:
    """Return what the words ask for; say on stderr what is wrong with them, and exit with 2."""
    parser = argparse.ArgumentParser(
        prog="python -m helpers.bench_data_parallel",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("what", choices=MEASUREMENTS, help="what is measured")
    add(
        *("--rounds", "-r"),
        type=_count,
        metavar="N",
        help="timed turns of each in a run, in the order A B C, C B A (cpu 30, others 3)",
    )
    add("--runs", type=_count, default=3, metavar="N", help="runs, each on new ranks (3)")
    add("--json", type=_file, metavar="FILE", help="write all runs, hardware, versions")
    found = parser.parse_args(words)
    return Command(found.what, found.rounds, found.runs, found.json)


def _count(text: str) -> int:
    if not re.fullmatch(r"\d{1,6}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a number, 1 or more")
    return int(text)


def _file(text: str) -> Path:
    found = Path(text)
    if found.suffix != ".json":
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a name with .json")
    if not found.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"no folder {str(found.parent)!r} to write into")
    return found
