"""`sum_of_squares`: one pass over a tensor, for the norm that clipping needs."""

import torch
from torch import Tensor

from helpers.kernels import checks, reference
from helpers.kernels.dispatch import BLOCK, NUM_WARPS, kernel, num_programs, runs_triton, writes
from helpers.kernels.memory_order import has_no_gaps

BLOCKS_PER_PROGRAM = 8


@torch.no_grad()
def sum_of_squares(tensor: Tensor) -> Tensor:
    """Return the sum of the squares of all elements, float32 (float64 of float64), []. Local.

    tensor: floating point, dense, of any shape and strides. Squares are added in float32, in a
    fixed order: equal bits on each run of one machine, and within rounding of the reference,
    which adds in another order. NaN and infinities are carried through.

    The tensor is read once; a float16 or bfloat16 one is not written out in float32, as the
    reference does. Raises TypeError for a sparse tensor or one that is no floating point.
    Chapter 09 builds it.
    """
    checks.check_dense(tensor, "tensor")
    checks.check_floating(tensor, "tensor")
    if not (runs_triton(tensor) and tensor.numel() and has_no_gaps(tensor)):
        return reference.sum_of_squares(tensor)
    grid = num_programs(tensor.numel(), BLOCKS_PER_PROGRAM * BLOCK)
    partial_sums = torch.empty(grid, dtype=torch.float32, device=tensor.device)
    with writes(partial_sums):
        kernel("squares", "squares_kernel")[(grid,)](
            tensor,
            partial_sums,
            tensor.numel(),
            BLOCKS_PER_PROGRAM=BLOCKS_PER_PROGRAM,
            BLOCK=BLOCK,
            num_warps=NUM_WARPS,
        )
    return partial_sums.sum()
