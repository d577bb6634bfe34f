"""torch: its version, what it was built for, and which build would suit this machine.

A driver runs programs of its own CUDA's major version and of older ones, and minor versions at
will: CUDA 13 needs driver 580 or newer, CUDA 12 needs 525, CUDA 11 needs 450.
Source: NVIDIA, CUDA Toolkit Release Notes, "CUDA Toolkit and Minimum Required Driver Version for
CUDA Minor Version Compatibility".
"""

import platform
from dataclasses import dataclass
from pathlib import Path

from .nvidia import Nvidia
from .row import BAD, WARN, Row

TOPIC = "torch"
#: Least major version of the driver, and the newest major version of CUDA that it runs.
NEWEST_CUDA = ((580, 13), (525, 12), (450, 11))
#: The book keeps to what these have in common.
OLDEST, NEWEST = (2, 11), (2, 14)


@dataclass(frozen=True)
class Torch:
    """What was read. `trouble`: why it cannot be imported, "" where it can. `cuda`, `hip`: the
    versions that it was built for, "" for none. `backends`: those of torch.distributed."""

    version: str = ""
    cuda: str = ""
    hip: str = ""
    backends: tuple[str, ...] = ()
    trouble: str = ""


def read() -> Torch:
    """Import torch, without waking a GPU. Local; raises nothing."""
    try:
        import torch
        import torch.distributed as dist
    except (ImportError, OSError) as error:  # OSError: a library of CUDA's that is missing
        return Torch(trouble=" ".join(str(error).split()))
    backends = ()
    if dist.is_available():
        names = ("gloo", "nccl", "mpi", "ucc", "xccl")
        backends = tuple(n for n in names if getattr(dist, f"is_{n}_available", bool)())
    cuda, hip = torch.version.cuda or "", getattr(torch.version, "hip", None) or ""
    return Torch(str(torch.__version__), cuda, hip, backends)


def has_amd_gpu(device: str = "/dev/kfd") -> bool:
    """Whether AMD's driver for computing is loaded. Local."""
    return Path(device).exists()


def newest_cuda(driver: str) -> int:
    """The newest major version of CUDA that this version of the driver runs; 0: none. Local."""
    major = driver.partition(".")[0]
    least = int(major) if major.isdecimal() else 0
    return next((cuda for from_driver, cuda in NEWEST_CUDA if least >= from_driver), 0)


def suitable_build(system: str, nvidia: Nvidia, has_amd: bool) -> str:
    """Which build of torch would suit, in words. Local."""
    if system == "Darwin":
        return "the one for macOS; several ranks run on the CPU with gloo"
    if nvidia.driver and (nvidia.names or nvidia.trouble):
        cuda = newest_cuda(nvidia.driver)
        if cuda >= 12:
            return f"one for CUDA {cuda} or older (driver {nvidia.driver})"
        return f"the CPU's, until the driver {nvidia.driver} is renewed (525 or newer)"
    if has_amd:
        return "one for ROCm (Linux); its NCCL is called RCCL"
    return "the CPU's: no GPU is here"


def rows(torch: Torch, nvidia: Nvidia, has_amd: bool, system: str | None = None) -> list[Row]:
    """The findings. Local."""
    build = suitable_build(system or platform.system(), nvidia, has_amd)
    suits = Row(TOPIC, "build that suits", build)
    if torch.trouble:
        return [Row(TOPIC, "torch", torch.trouble, BAD, ("no_torch",)), suits]
    has_gpu = bool(nvidia.names) or has_amd
    return [
        _version(torch),
        _backends(torch, has_gpu),
        _driver(nvidia),
        suits,
        _fits(torch, nvidia, has_gpu),
    ]


def _version(torch: Torch) -> Row:
    numbers = tuple(int(n) for n in torch.version.partition("+")[0].split(".")[:2] if n.isdecimal())
    if not OLDEST <= numbers <= NEWEST:
        return Row(TOPIC, "torch", torch.version, WARN, ("torch_version",))
    return Row(TOPIC, "torch", torch.version)


def _backends(torch: Torch, has_gpu: bool) -> Row:
    found = ", ".join(torch.backends) or "none"
    if "gloo" not in torch.backends:
        return Row(TOPIC, "backends", found, BAD, ("no_distributed",))
    if has_gpu and (torch.cuda or torch.hip) and "nccl" not in torch.backends:
        return Row(TOPIC, "backends", found, WARN, ("no_nccl",))
    return Row(TOPIC, "backends", found)


def _driver(nvidia: Nvidia) -> Row:
    if nvidia.trouble:
        return Row(TOPIC, "NVIDIA's driver", nvidia.trouble, WARN, ("driver_silent",))
    if not nvidia.driver:
        return Row(TOPIC, "NVIDIA's driver", "none")
    cuda = newest_cuda(nvidia.driver)
    found = f"{nvidia.driver}, runs CUDA {cuda} and older" if cuda else nvidia.driver
    return Row(TOPIC, "NVIDIA's driver", found)


def _fits(torch: Torch, nvidia: Nvidia, has_gpu: bool) -> Row:
    """Whether the build that is here uses the GPUs that are here."""
    name = "build that is here"
    if torch.hip:
        return Row(TOPIC, name, f"ROCm {torch.hip}")
    if not torch.cuda:
        found = "CPU only"
        return Row(TOPIC, name, found, WARN, ("cpu_build",)) if has_gpu else Row(TOPIC, name, found)
    found = f"CUDA {torch.cuda}"
    major = int(torch.cuda.partition(".")[0])
    if nvidia.driver and major > newest_cuda(nvidia.driver):
        found += f", newer than driver {nvidia.driver} runs"
        return Row(TOPIC, name, found, BAD, ("driver_old",))
    return Row(TOPIC, name, found if has_gpu else f"{found}; the CPU's is smaller")
