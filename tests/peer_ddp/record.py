"""Measure again what book/measured/peer_ddp.json says: torch's class and ours, worlds 2 and 3."""

import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch

from peer_ddp import lists

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "book" / "measured" / "peer_ddp.json"
COMMAND = ROOT / "tests" / "run_peer_ddp.py"
WORLD_SIZES = (2, 3)

Outcomes = list[dict]


def outcomes_of(*words: str, limit_s: float = 2400) -> Outcomes:
    """Run the command in a process of its own and return its outcomes; its lines go to stderr."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "outcomes.json"
        command = [sys.executable, COMMAND, *words, "--json", path]
        subprocess.run(command, cwd=ROOT, timeout=limit_s, stdout=sys.stderr, check=False)
        return json.loads(path.read_text())


def counts(outcomes: Outcomes) -> dict[str, int]:
    found = Counter(outcome["status"] for outcome in outcomes)
    return {status: found[status] for status in ("passed", "failed", "skipped")}


def measure() -> dict:
    """Run everything: about six minutes on two cores."""
    stock = {size: _run(size, "--stock", "--all") for size in WORLD_SIZES}
    ours = {size: _run(size) + _run(size, "--all", "-k", _slow(size)) for size in WORLD_SIZES}
    return {
        "what": "PyTorch's own tests of DistributedDataParallel, from the wheel, on the CPU with "
        "gloo; devices that they ask for are the CPU",
        "command": "python tests/run_peer_ddp.py --record",
        "torch": torch.__version__.partition("+")[0],
        "date": datetime.date.today().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.system()}, "
        f"Python {platform.python_version()}",
        "stock": {str(size): counts(outcomes) for size, outcomes in stock.items()},
        "ours": {str(size): counts(outcomes) for size, outcomes in ours.items()},
        "ours_skipped": _reasons(ours, "skipped"),
        "exceptions": _listed(lists.EXCEPTIONS),
        "recorded_only": {str(size): _listed(lists.RECORDED_ONLY[size]) for size in WORLD_SIZES},
        "stock_failed": _reasons(stock, "failed"),
        "stock_skipped": _reasons(stock, "skipped"),
    }


def _run(world_size: int, *words: str) -> Outcomes:
    return outcomes_of("--world-size", str(world_size), *words)


def _slow(world_size: int) -> str:
    return "|".join(f"^{name}$" for name in lists.RECORDED_ONLY[world_size])


def _reasons(by_size: dict[int, Outcomes], status: str) -> list[dict]:
    """Each test that ended so, once: its reason, and the worlds where it did."""
    found: dict[str, dict] = {}
    for size, outcomes in by_size.items():
        for outcome in outcomes:
            if outcome["status"] == status:
                name, reason = outcome["name"], outcome["reason"]
                row = found.setdefault(name, {"name": name, "reason": reason, "worlds": []})
                row["worlds"].append(size)
    return list(found.values())


def _listed(reasons: dict[str, str]) -> list[dict]:
    return [{"name": name, "reason": reason} for name, reason in reasons.items()]


def write(record: dict) -> None:
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
