"""The command's words, and what each of them may be."""

import argparse
import re
from dataclasses import dataclass
from pathlib import Path

import torch

from helpers.collectives import ALGORITHMS
from helpers.link import LINKS, Link

TORCH, AUTO, SHARED_MEMORY = "torch", "auto", "shared_memory"
NAMES = (TORCH, *ALGORITHMS, AUTO, SHARED_MEMORY)
DTYPES = ("float64", "float32", "float16", "bfloat16", "int64")

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}

_DESCRIPTION = """\
Times an all-reduce of each size by each algorithm on each number of ranks, checks its values,
and prints a table in the manner of nccl-tests, with what its columns mean. On one host it starts
the ranks itself; under torchrun (torchrun --nproc-per-node 4 -m helpers.bench_collectives) it
takes those that are there. With a GPU for each rank it measures nccl and our algorithms on the
GPUs, else gloo and ours on the CPU."""

_EXAMPLES = """\
examples:
  python -m helpers.bench_collectives
  python -m helpers.bench_collectives --ranks 4 --sizes 64M
  python -m helpers.bench_collectives --link ethernet_10g --slowed 100 --figure all_reduce.svg"""


@dataclass(frozen=True)
class Settings:
    """What is to be measured; the same on every rank."""

    sizes_bytes: tuple[int, ...]
    algorithms: tuple[str, ...]
    dtype: str
    repeat: int
    warmup: int
    timeout_s: float
    link: Link | None
    link_name: str | None


@dataclass(frozen=True)
class Command:
    """The settings, and what is done with the results."""

    settings: Settings
    worlds: tuple[int, ...]  # () where none was named
    json: Path | None
    figure: Path | None


def parse(words: list[str] | None = None) -> Command:
    """Return what the words ask for; say on stderr what is wrong with them, and exit with 2."""
    parser = _parser()
    found = parser.parse_args(words)
    if found.slowed is not None and found.link is None:
        parser.error("--slowed: expected --link NAME with it; a real link has one speed only")
    link = None if found.link is None else LINKS[found.link].slowed(found.slowed or 1.0)
    settings = Settings(
        sizes_bytes=_whole_elements(found.sizes, found.dtype),
        algorithms=tuple(dict.fromkeys(found.algorithms or _all_of(link))),
        dtype=found.dtype,
        repeat=found.repeat,
        warmup=found.warmup,
        timeout_s=found.timeout_s,
        link=link,
        link_name=found.link,
    )
    if link is not None and SHARED_MEMORY in settings.algorithms:
        parser.error("--algorithms: shared_memory goes over no link; leave it out beside --link")
    return Command(
        settings, found.ranks and tuple(dict.fromkeys(found.ranks)), found.json, found.figure
    )


def _whole_elements(sizes_bytes: list[int], dtype: str) -> tuple[int, ...]:
    """The sizes, rounded down to elements, one at least; each once, the smallest first."""
    element_bytes = getattr(torch, dtype).itemsize
    lengths = {max(1, size_bytes // element_bytes) for size_bytes in sizes_bytes}
    return tuple(length * element_bytes for length in sorted(lengths))


def _all_of(link: Link | None) -> list[str]:
    """What is measured where nothing is named: all but the choice, which is one of the others."""
    return [name for name in NAMES if name != AUTO and (link is None or name != SHARED_MEMORY)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m helpers.bench_collectives",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        *("--sizes", "-s"),
        nargs="+",
        type=_size,
        default=[1 << 10, 1 << 14, 1 << 18, 1 << 22],
        metavar="SIZE",
        help="bytes of the tensor, as 4096, 64K or 4M (K = 1024), 4MB (1e6) (1K 16K 256K 4M)",
    )
    add(
        *("--ranks", "-n"),
        nargs="+",
        type=_at_least(1),
        metavar="N",
        help="numbers of ranks, one after the other (2); under torchrun its own",
    )
    add(
        *("--algorithms", "-a"),
        nargs="+",
        choices=NAMES,
        metavar="NAME",
        help=f"some of {', '.join(NAMES)} (all but auto). torch: dist.all_reduce; "
        "auto: ours, as chosen by size, world and link",
    )
    add("--dtype", choices=DTYPES, default="float32", help="of the tensor (float32)")
    add("--repeat", type=_at_least(1), default=7, metavar="N", help="timed rounds (7)")
    add("--warmup", type=_at_least(0), default=2, metavar="N", help="rounds thrown away (2)")
    add(
        "--link",
        choices=LINKS,
        metavar="NAME",
        help=f"emulate this link, and predict beside it: one of {', '.join(LINKS)}",
    )
    add(
        "--slowed",
        type=_positive,
        metavar="F",
        help="show the link in slow motion, F times slower, since gloo is slower than fast links",
    )
    add("--timeout-s", type=_positive, default=30.0, metavar="S", help="for a rank (30)")
    add("--json", type=_file(".json"), metavar="FILE", help="write all runs, hardware, versions")
    add("--figure", type=_file(".svg"), metavar="FILE.svg", help="draw time against size")
    return parser


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?(?:I?B)?)", text.upper())
    scale = _UNITS.get(match[2].removesuffix("B") or "", None) if match else None
    if match and match[2] in _UNITS:
        scale = _UNITS[match[2]]
    size_bytes = round(float(match[1]) * scale) if match and scale else 0
    if size_bytes < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; expected bytes as 4096, 64K, 4MB")
    return size_bytes


def _at_least(least: int):
    def number(text: str) -> int:
        if not re.fullmatch(r"\d+", text) or int(text) < least:
            raise argparse.ArgumentTypeError(f"found {text!r}, expected a number, {least} or more")
        return int(text)

    return number


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e6:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a number above 0, up to 1e6")
    return number


def _file(suffix: str):
    def path(text: str) -> Path:
        found = Path(text)
        if found.suffix != suffix:
            raise argparse.ArgumentTypeError(f"found {text!r}, expected a name with {suffix}")
        if not found.absolute().parent.is_dir():
            raise argparse.ArgumentTypeError(f"no folder {str(found.parent)!r} to write into")
        return found

    return path
