"""Kernels and notebooks on the GPUs of this machine; what is found is stored in book/measured.

python tests/run_gpu.py

Without a GPU it is a dry run of the kernels' part, on the CPU, through the same code; the
notebooks' part is then what `make test` does.
"""

import json
import os
import re
import shutil
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import torch
from notebook_cells import BOOK, chapters
from run_all import NBVAL_REPORTS, ROOT, nbval, notebook_seconds

from helpers.bench_collectives.record import write_whole
from helpers.kernels.bench.command import main as measure_kernels

STOPPED = 130
DRY_RUN = ROOT / "_build" / "gpu_dry_run.json"


def main() -> int:
    if not torch.cuda.is_available():
        DRY_RUN.parent.mkdir(exist_ok=True)
        return measure_kernels(["--json", str(DRY_RUN)])
    path = BOOK / "measured" / f"gpu_{words(torch.cuda.get_device_name())}.json"
    code = measure_kernels(["--json", str(path)])
    if code == STOPPED:
        return code
    is_green = run_notebooks()
    if path.exists():
        add_notebooks(path)
    return max(code, not is_green)


def words(name: str) -> str:
    """A name as part of a file's name."""
    return re.sub(r"\W+", "_", name).strip("_").lower()


def run_notebooks() -> bool:
    """Only assertions count: outputs were stored on a machine without a GPU."""
    shutil.rmtree(NBVAL_REPORTS, ignore_errors=True)  # `make test` leaves its seconds there
    workers = str(max(1, min(4, (os.cpu_count() or 1) // 4)))
    return nbval(chapters(), "gpu", "-n", workers, "--dist", "loadfile")


def add_notebooks(path: Path) -> None:
    """Add each notebook's seconds and failed cells to the record."""
    report = NBVAL_REPORTS / "gpu.xml"
    failed = failed_cells(report)
    record = json.loads(path.read_text())
    record["notebooks"] = {
        name: {"seconds": round(seconds, 1), "failed_cells": failed[name]}
        for name, seconds in notebook_seconds(report.parent).items()
    }
    write_whole(path, json.dumps(record, indent=1) + "\n")


def failed_cells(report: Path) -> Counter[str]:
    """How many cells of each notebook failed, from nbval's report."""
    cases = ElementTree.parse(report).iter("testcase")
    red = [case for case in cases if {child.tag for child in case} & {"failure", "error"}]
    names = (case.get("classname", "").removesuffix(".ipynb").split(".")[-1] for case in red)
    return Counter(names)


if __name__ == "__main__":
    sys.exit(main())
