"""The results as JSON: every run, and what it ran on."""

import dataclasses
import datetime
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path

import torch

from helpers.cost_model import algorithm_bandwidth_gb_per_s, bus_bandwidth_gb_per_s
from helpers.whole_file import write_whole

from .arguments import Settings
from .measure import Row, World
from .table import link_words


def record(worlds: Sequence[World], settings: Settings) -> dict:
    """Return results, hardware, versions, backend, link and date, as JSON takes them. Local."""
    link = settings.link
    return {
        "what": "all-reduce: seconds of one call of the slowest rank, by round",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine(),
        "link": {
            "is_emulated": link is not None,
            "words": link_words(settings),
            **({"name": settings.link_name, **_fields(link)} if link else {}),
        },
        "dtype": settings.dtype,
        "repeat": settings.repeat,
        "worlds": [
            {
                "world_size": world.world_size,
                "backend": world.backend,
                "device": world.device,
                "late_operations": world.num_late,
                "rows": [_row(row) for row in world.rows],
            }
            for world in worlds
        ],
    }


def _fields(link) -> dict:
    names = ("latency_s", "bandwidth_gb_per_s", "slow_motion")
    return {name: getattr(link, name) for name in names}


def _row(row: Row) -> dict:
    return {
        **dataclasses.asdict(row),
        "seconds": [round(seconds, 9) for seconds in row.seconds],
        "cpu_s": [round(seconds, 9) for seconds in row.cpu_s],
        "median_s": row.median_s,
        "median_cpu_s": row.median_cpu_s,
        "algbw_gb_per_s": algorithm_bandwidth_gb_per_s(row.size_bytes, row.median_s),
        "busbw_gb_per_s": bus_bandwidth_gb_per_s(row.size_bytes, row.median_s, row.world_size),
    }


def machine() -> dict:
    """Return hardware and versions, without names of machines or users. Local."""
    has_cuda = torch.cuda.is_available()
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "gpus": gpus if has_cuda else [],
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda if has_cuda else None,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if has_cuda else None,
    }


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def write_json(path: Path, worlds: Sequence[World], settings: Settings) -> None:
    """Write the record of all worlds. Local."""
    write_whole(path, json.dumps(record(worlds, settings), indent=1) + "\n")
