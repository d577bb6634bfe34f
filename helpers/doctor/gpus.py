"""GPUs as torch sees them: which, how fast each, and whether they reach each other.

Written for GPUs, tested with readings made up for it; not run on a machine with GPUs.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .ask import Answer, said_by, text_of
from .nvidia import Nvidia
from .row import BAD, WARN, Row

TOPIC = "GPUs"
LIMIT_S = 60.0  # to load torch, wake every GPU and multiply on each
#: GPUs of one kind differ by a few per cent.
MOST_SPREAD = 1.15
CHILD = (sys.executable, "-m", "helpers.doctor.gpu_child")


@dataclass(frozen=True)
class Gpu:
    """One GPU: `matmul_ms`, the fastest of a few multiplications; `reaches`: indices of those
    whose memory it can read."""

    name: str
    memory_gib: float
    uuid: str
    matmul_ms: float
    reaches: tuple[int, ...] = ()


@dataclass(frozen=True)
class Gpus:
    """What was read. `trouble`: why torch could not use them, "" where it could."""

    gpus: tuple[Gpu, ...] = ()
    trouble: str = ""
    has_iommu: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


def read(ask: Callable[..., Answer] = said_by) -> Gpus:
    """Look at the GPUs from a process of its own, since a driver may hang. Local."""
    has_iommu, environment = _has_iommu(), dict(os.environ)
    answer = ask(CHILD, LIMIT_S)
    try:
        lines = answer.text.splitlines() or ["{}"]
        told = json.loads(lines[-1])
        gpus = tuple(Gpu(**{**gpu, "reaches": tuple(gpu["reaches"])}) for gpu in told["gpus"])
        return Gpus(gpus, told["trouble"], has_iommu, environment)
    except (ValueError, KeyError, TypeError):
        return Gpus((), answer.trouble or "no sense in what they said", has_iommu, environment)


def _has_iommu(folder: str = "/sys/class/iommu", boot: str = "/proc/cmdline") -> bool:
    """Whether an IOMMU translates; with iommu=pt it lets devices pass."""
    try:
        is_there = any(Path(folder).iterdir())
    except OSError:
        return False
    return is_there and "iommu=pt" not in text_of(boot).split()


def rows(found: Gpus, nvidia: Nvidia, num_ranks: int) -> list[Row]:
    """The findings. Local."""
    visible = _visible(found)
    if found.trouble:
        return [Row(TOPIC, "GPUs", found.trouble, BAD, ("gpus_silent",)), *visible]
    if not found.gpus:
        return [*_hidden(0, nvidia), *visible] or [Row(TOPIC, "GPUs", "none that this torch uses")]
    listed = [Row(TOPIC, f"GPU {i}", _words(gpu)) for i, gpu in enumerate(found.gpus)]
    several = [*_spread(found), *_links(found, nvidia)] if len(found.gpus) > 1 else []
    hidden = _hidden(len(found.gpus), nvidia)
    return [*listed, *hidden, *visible, _ranks(found, num_ranks), *several]


def _words(gpu: Gpu) -> str:
    return f"{gpu.name}, {gpu.memory_gib:.0f} GiB, matrix multiplication {gpu.matmul_ms:.2f} ms"


def _hidden(num_seen: int, nvidia: Nvidia) -> list[Row]:
    if num_seen < len(nvidia.names):
        words = f"torch sees {num_seen} of {len(nvidia.names)}"
        return [Row(TOPIC, "visible", words, WARN, ("gpus_hidden",))]
    return []


def _visible(found: Gpus) -> list[Row]:
    setting = found.environment.get("CUDA_VISIBLE_DEVICES")
    if setting is None:
        return []
    names = [name.strip() for name in setting.split(",") if name.strip()]
    uuids = [gpu.uuid for gpu in found.gpus]
    if len(set(names)) < len(names) or len(set(uuids)) < len(uuids):
        return [Row(TOPIC, "CUDA_VISIBLE_DEVICES", setting, BAD, ("visible_twice",))]
    return [Row(TOPIC, "CUDA_VISIBLE_DEVICES", setting or "empty: none")]


def _ranks(found: Gpus, num_ranks: int) -> Row:
    words = f"{num_ranks} on {len(found.gpus)} GPUs"
    if num_ranks > len(found.gpus):
        return Row(TOPIC, "ranks", words, WARN, ("duplicate_gpu",))
    return Row(TOPIC, "ranks", words)


def _spread(found: Gpus) -> list[Row]:
    """How much slower the slowest GPU is than the fastest, of each kind that is here twice."""
    rows = []
    for name in dict.fromkeys(gpu.name for gpu in found.gpus):
        times = [gpu.matmul_ms for gpu in found.gpus if gpu.name == name]
        if len(times) < 2:
            continue
        slowest = next(i for i, gpu in enumerate(found.gpus) if gpu.matmul_ms == max(times))
        spread = max(times) / min(times)
        words = f"slowest over fastest {spread:.2f}"
        if spread > MOST_SPREAD:
            words += f" (GPU {slowest})"
            rows.append(Row(TOPIC, f"spread, {name}", words, WARN, ("slow_gpu",)))
        else:
            rows.append(Row(TOPIC, f"spread, {name}", words))
    return rows


def _links(found: Gpus, nvidia: Nvidia) -> list[Row]:
    kinds = ", ".join(f"{count} x {kind}" for kind, count in nvidia.links)
    rows = [Row(TOPIC, "links, by pairs", kinds or "not known here")]
    everyone = range(len(found.gpus))
    apart = [(i, j) for i in everyone for j in everyone if i < j and not _reach(found, i, j)]
    if apart:
        pairs = ", ".join(f"{i}-{j}" for i, j in apart[:4]) + (" ..." if apart[4:] else "")
        rows.append(Row(TOPIC, "peer access", f"not between {pairs}", WARN, ("no_p2p",)))
    else:
        rows.append(Row(TOPIC, "peer access", "between all"))
    is_over_pcie = any(not kind.startswith("NV") for kind, _ in nvidia.links)
    if found.has_iommu and is_over_pcie:
        words = "on, and GPUs meet over PCIe"
        return [*rows, Row(TOPIC, "IOMMU", words, WARN, ("iommu",))]
    return [*rows, Row(TOPIC, "IOMMU", "on" if found.has_iommu else "off or passing")]


def _reach(found: Gpus, i: int, j: int) -> bool:
    return j in found.gpus[i].reaches and i in found.gpus[j].reaches
