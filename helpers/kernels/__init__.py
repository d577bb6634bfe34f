"""Kernels for what is bound by memory: gradients accumulated, packed, squared and summed.

A CUDA tensor goes to a Triton kernel; with TRITON_INTERPRET=1 the same kernel is interpreted,
on CPU tensors; else a reference of the same name in torch does the work. To import this takes
neither triton nor a GPU. Chapter 09 builds them.
"""

from helpers.kernels import reference
from helpers.kernels.accumulate import accumulate_
from helpers.kernels.dispatch import has_triton, require_triton, runs_triton
from helpers.kernels.one_shot import all_reduce_one_shot
from helpers.kernels.packing import pack, unpack
from helpers.kernels.squares import sum_of_squares

__all__ = [
    "accumulate_",
    "all_reduce_one_shot",
    "has_triton",
    "pack",
    "reference",
    "require_triton",
    "runs_triton",
    "sum_of_squares",
    "unpack",
]
