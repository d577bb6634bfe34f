"""The command: verdicts, bandwidths, times between ranks; a table, and JSON."""

import argparse
import datetime
import json
import sys
from pathlib import Path

import torch

from helpers.bench_collectives.record import machine, write_whole
from helpers.kernels.bench.between_ranks import SIZES_BYTES, one_shot_rows
from helpers.kernels.bench.contests import contests, small_tensors
from helpers.kernels.bench.correct import verdicts
from helpers.kernels.bench.measure import contest_row
from helpers.kernels.bench.table import table
from helpers.kernels.dispatch import has_triton, runs_triton

#: So much that it does not fit a GPU's cache; in a dry run little, for an interpreter too.
MOVED_BYTES, DRY_MOVED_BYTES = 1_000_000_000, 100_000


def main(words: list[str] | None = None) -> int:
    """The command; returns its exit code: 0, 1 where a kernel is wrong, 130 if stopped. Local."""
    arguments = _parse(words)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        print("NO GPU: a dry run on the CPU, through the same code; no speed here counts.")
    try:
        found = record(device)
    except KeyboardInterrupt:
        print("stopped; nothing was written", file=sys.stderr)
        return 130
    print(table(found))
    if arguments.json:
        write_whole(arguments.json, json.dumps(found, indent=1) + "\n")
        print(f"written to {arguments.json}")
    return 0 if is_right(found) else 1


def _parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m helpers.kernels.bench",
        description="Check the kernels of chapter 09 on this GPU against their references, and "
        "time them beside bare copies and torch's own operations. Without a GPU: a dry run.",
    )
    parser.add_argument("--json", type=Path, help="file for all samples, hardware and versions")
    arguments = parser.parse_args(words)
    if arguments.json and not arguments.json.absolute().parent.is_dir():
        parser.error(f"--json: no folder {arguments.json.parent}, expected one to write into")
    return arguments


def record(device: torch.device) -> dict:
    """Return all that was found, with hardware, versions and date, as JSON takes it. Local."""
    is_dry = device.type == "cpu"
    moved_bytes, sizes_bytes = (
        (DRY_MOVED_BYTES, SIZES_BYTES[:2]) if is_dry else (MOVED_BYTES, SIZES_BYTES)
    )
    rows = [contest_row(each, device) for each in contests(device, moved_bytes)]
    few = contest_row(small_tensors(device, 5 if is_dry else 1000), device)
    return {
        "what": "kernels of chapter 09: verdicts, bandwidths, one-shot all-reduce",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "is_dry_run": is_dry,
        "machine": machine() | {"triton": _triton_version()},
        "is_kernel": runs_triton(torch.empty(1, device=device)),
        "verdicts": verdicts(device),
        "bandwidths": rows,
        "small_tensors": few,
        "one_shot": one_shot_rows(device, sizes_bytes),
    }


def _triton_version() -> str | None:
    if not has_triton():
        return None
    import triton

    return triton.__version__


def is_right(found: dict) -> bool:
    """Return whether no kernel differs from its reference, alone or between ranks. Local."""
    alone = all(
        verdict in ("equal bits", "within rounding") for verdict in found["verdicts"].values()
    )
    between = all("failed" not in row and row["equal_bits"] for row in found["one_shot"])
    return alone and between
