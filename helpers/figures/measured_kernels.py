"""What `make gpu` has stored of kernels on GPUs, as the chapter prints it."""

import json
from collections.abc import Sequence
from pathlib import Path

from helpers.kernels.bench.table import table


def gpu_records(folder: str | Path) -> list[dict]:
    """Return what `make gpu` has stored in a folder, by date; dry runs do not count. Local."""
    records = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("gpu_*.json"))]
    return sorted((r for r in records if not r["is_dry_run"]), key=lambda record: record["date"])


def gpu_tables(records: Sequence[dict]) -> str:
    """Return their tables as text, or which numbers are missing and how to make them. Local."""
    if not records:
        return (
            "No GPU has been measured for this page: bandwidths of the four\n"
            "kernels beside a copy, and seconds of the one-shot all-reduce\n"
            "beside NCCL's, are missing. `make gpu` on a machine with a GPU\n"
            "makes them, and stores them in book/measured."
        )
    return "\n\n".join(f"{_words(record)}\n{table(record)}" for record in records)


def _words(record: dict) -> str:
    machine = record["machine"]
    gpus = f"{len(machine['gpus'])} x {machine['gpus'][0]}" if machine["gpus"] else "no GPU"
    versions = f"torch {machine['torch']}, triton {machine['triton']}"
    return f"{gpus}, {versions}, {record['date']}"
