"""Whether this PyTorch fits this machine: its build, its CUDA, the driver, Triton."""

import re
import subprocess
from dataclasses import dataclass

import torch

from helpers.doctor.row import BAD, NOTE, Row
from helpers.kernels import has_triton

SELECTOR = "see the selector on pytorch.org, and README.md, Which PyTorch"


@dataclass(frozen=True)
class Build:
    """What was read. cuda: of the build, "12.8". driver_cuda: the newest that the driver runs."""

    torch: str
    cuda: str | None
    hip: str | None
    driver_cuda: str | None
    num_gpus: int
    has_triton: bool


def read_build(driver_says: str | None = None) -> Build:
    """Return what torch and NVIDIA's driver tell; `driver_says`: nvidia-smi's output. Local."""
    said = ask("nvidia-smi") if driver_says is None else driver_says
    found = re.search(r"CUDA Version:\s*([\d.]+)", said)
    return Build(
        torch=torch.__version__,
        cuda=torch.version.cuda,
        hip=torch.version.hip,
        driver_cuda=found and found[1],
        num_gpus=torch.cuda.device_count(),
        has_triton=has_triton(),
    )


def ask(*command: str, timeout_s: float = 5.0) -> str:
    """Return what a command prints; nothing where it is missing, fails or takes longer. Local."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def build_rows(build: Build) -> list[Row]:
    """Return a row for the build, and one for Triton. Local."""
    triton = "installed" if build.has_triton else "not installed"
    advice = "" if build.has_triton else "`make triton` installs it on Linux, for chapter 09"
    verdict = {} if build.has_triton else {"verdict": NOTE, "advice": advice}
    return [_row_of_build(build), Row("triton", triton, **verdict)]


def _row_of_build(build: Build) -> Row:
    kind = f"CUDA {build.cuda}" if build.cuda else f"ROCm {build.hip}" if build.hip else "CPU only"
    found = f"torch {build.torch}, {kind}"
    if build.driver_cuda:
        found += f"; the driver runs CUDA up to {build.driver_cuda}"
    fault = _fault(build)
    return Row("PyTorch", found, *fault) if fault else Row("PyTorch", found)


def _fault(build: Build) -> tuple[str, str] | None:
    newest = build.driver_cuda
    if newest and not build.cuda:
        return BAD, f"it cannot use the GPU: take a build for CUDA {newest} or older; {SELECTOR}"
    if newest and _major(build.cuda) > _major(newest):
        return BAD, f"the driver is too old: a newer one, or a build for CUDA {newest}; {SELECTOR}"
    if newest and not build.num_gpus:
        return BAD, (
            "there is a driver and torch sees no GPU: is CUDA_VISIBLE_DEVICES empty, or the "
            "container without --gpus all?"
        )
    if build.cuda and not build.num_gpus:
        return NOTE, f"no GPU: the build for the CPU only is several GB smaller; {SELECTOR}"
    return None


def _major(version: str) -> int:
    """Builds of one major version run on each other's drivers: NVIDIA's minor compatibility."""
    return int(version.split(".")[0])
