"""The GPUs, what lies between them, and whether one is slower than the rest. Not run on a GPU."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from helpers.doctor.row import BAD, NOTE, Row
from helpers.doctor.torch_build import ask
from helpers.timing import measure

GB = 10**9
#: A GPU that is hot or shared with somebody falls behind by more.
ENOUGH_OF_THE_FASTEST = 0.9


@dataclass(frozen=True)
class Gpu:
    """One GPU: its name, bytes, what tells it from others, and how fast it multiplies."""

    name: str
    memory_bytes: int
    uuid: str
    tflop_per_s: float


def read_gpus() -> list[Gpu]:
    """Return every GPU that torch sees, each measured for a moment. Local."""
    found = []
    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        uuid = str(getattr(about, "uuid", index))
        found.append(Gpu(about.name, about.total_memory, uuid, _tflop_per_s(index)))
    return found


def _tflop_per_s(index: int, size: int = 4096) -> float:
    device = torch.device("cuda", index)
    left, right = torch.randn(2, size, size, device=device, dtype=torch.bfloat16)
    timing = measure(lambda: left @ right, repeat=10, device=device)
    return 2 * size**3 / timing.median_s / 1e12


def gpu_rows(gpus: Sequence[Gpu], topology: str | None = None) -> list[Row]:
    """Return rows for the GPUs; `topology`: what `nvidia-smi topo -m` prints. Local."""
    if not gpus:
        return [Row("GPUs", "none: everything runs on the CPU, over gloo")]
    names = sorted({f"{gpu.name}, {gpu.memory_bytes / GB:.0f} GB" for gpu in gpus})
    rows = [Row("GPUs", f"{len(gpus)} x {'; '.join(names)}"), *_duplicates(gpus), _spread(gpus)]
    if len(gpus) > 1:
        rows.append(_links(ask("nvidia-smi", "topo", "-m") if topology is None else topology))
    return rows


def _duplicates(gpus: Sequence[Gpu]) -> list[Row]:
    uuids = [gpu.uuid for gpu in gpus]
    if len(set(uuids)) == len(uuids):
        return []
    advice = (
        "NCCL refuses with 'Duplicate GPU detected': name each GPU once in CUDA_VISIBLE_DEVICES, "
        "and call torch.cuda.set_device(local rank) before the first collective"
    )
    return [Row("GPUs seen twice", f"{len(uuids) - len(set(uuids))}", BAD, advice)]


def _spread(gpus: Sequence[Gpu]) -> Row:
    speeds = [gpu.tflop_per_s for gpu in gpus]
    found = f"{min(speeds):.0f} to {max(speeds):.0f} TFLOP/s (bfloat16, {len(gpus)} GPUs)"
    if min(speeds) >= ENOUGH_OF_THE_FASTEST * max(speeds):
        return Row("matrix multiply", found)
    slow = speeds.index(min(speeds))
    advice = (
        f"GPU {slow} is slower, and all ranks wait for it: is it hot, shared, or capped in power?"
    )
    return Row("matrix multiply", found, NOTE, advice)


def _links(topology: str) -> Row:
    """NV# is NVLink; PIX and PXB a PCIe switch; PHB, NODE and SYS go through the CPU."""
    kinds = set()
    for line in topology.splitlines():
        if re.match(r"\s*GPU\d+\s", line):
            kinds |= set(re.findall(r"\b(NV\d+|PIX|PXB|PHB|NODE|SYS)\b", line))
    if not kinds:
        return Row("links", "unknown: nvidia-smi topo -m says nothing")
    found = ", ".join(sorted(kinds))
    if kinds & {"PHB", "NODE", "SYS"} and not any(kind.startswith("NV") for kind in kinds):
        advice = (
            "no NVLink: all-reduces go through the CPU. If they hang, try NCCL_P2P_DISABLE=1, and "
            "see whether IOMMU or ACS is on"
        )
        return Row("links", found, NOTE, advice)
    return Row("links", found)
