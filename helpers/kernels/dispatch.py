"""Who does the work: a Triton kernel, compiled or interpreted, or the reference."""

import importlib
import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
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


def runs_triton(*tensors: Tensor) -> bool:
    """Return whether a kernel works on these tensors, and not the reference. Local.

    On a CUDA device it is compiled; with TRITON_INTERPRET=1 it is interpreted, on CPU tensors
    only: an interpreter on the CPU cannot read a GPU's addresses.
    """
    return all(map(_has_kernels, tensors)) and has_triton()


def _has_kernels(tensor: Tensor) -> bool:
    is_plain = type(tensor) in (Tensor, Parameter) and not tensor.is_neg()  # has an address
    if tensor.dtype not in KERNEL_DTYPES or not is_plain:
        return False
    return tensor.device.type == ("cpu" if is_interpreted() else "cuda")


def is_interpreted() -> bool:
    """Return whether TRITON_INTERPRET is on, in one of the ways in which Triton takes it. Local."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "y", "on", "yes", "true")


@contextmanager
def writes(*tensors: Tensor) -> Iterator[None]:
    """Launch a kernel in here: on the tensors' GPU, whichever is the current one.

    Triton takes the current device. And autograd has to hear that these are written to: it does
    not see kernels, and would go on with what it has saved. Local.
    """
    with torch.cuda.device_of(tensors[0]):
        torch.autograd.graph.increment_version(tensors)
        yield


def kernel(module: str, name: str) -> Any:
    """Return a kernel of helpers.kernels.jit: imported at its first use, not before. Local.

    Raises RuntimeError where Triton was imported before TRITON_INTERPRET was set or unset.
    """
    language = importlib.import_module("triton.language")
    interprets = type(language.cdiv).__name__ == "InterpretedFunction"
    if interprets != is_interpreted():
        raise RuntimeError(
            f"Triton was imported {'with' if interprets else 'without'} TRITON_INTERPRET=1, and "
            "that is otherwise now: set it before anything imports triton, as torch.compile and "
            "torch.optim do"
        )
    return getattr(importlib.import_module(f"helpers.kernels.jit.{module}"), name)


def num_programs(num_elements: int, elements_each: int = BLOCK) -> int:
    return -(-num_elements // elements_each)
