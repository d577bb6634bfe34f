"""Who does the work: a Triton kernel, compiled or interpreted, or the reference."""

import importlib
import importlib.util
import os
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

#: What the kernels load and store. They compute in float32, which float64 is too wide for.
KERNEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
#: Elements a program takes at a time: 16 for each of its threads, as 128-bit loads want it.
BLOCK = 4096
NUM_WARPS = 8


@cache
def has_triton() -> bool:
    """Return whether Triton is installed; nothing is imported. Local."""
    return importlib.util.find_spec("triton") is not None


def require_triton() -> None:
    """Raise ModuleNotFoundError, with what to do, where Triton is not installed. Local."""
    if not has_triton():
        raise ModuleNotFoundError(
            "Triton is not installed here: `make triton` does it on Linux, in .venv. There is "
            "none for macOS and Windows, where the references in torch do the work"
        )


def runs_triton(tensor: Tensor) -> bool:
    """Return whether a kernel works on this tensor, and not the reference. Local.

    On a CUDA device it is compiled; with TRITON_INTERPRET=1 it is interpreted, on CPU tensors.
    The variable is read when the first kernel runs, and must not change from then on.
    """
    is_plain = type(tensor) in (Tensor, Parameter) and not tensor.is_neg()  # has an address
    if tensor.dtype not in KERNEL_DTYPES or not is_plain or not has_triton():
        return False
    return tensor.is_cuda or (tensor.device.type == "cpu" and is_interpreted())


def is_interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def kernel(module: str, name: str) -> Any:
    """Return a kernel of helpers.kernels.jit: imported at its first use, not before. Local."""
    return getattr(importlib.import_module(f"helpers.kernels.jit.{module}"), name)


def num_programs(num_elements: int, elements_each: int = BLOCK) -> int:
    return -(-num_elements // elements_each)
