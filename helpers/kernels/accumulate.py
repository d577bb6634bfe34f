"""`accumulate_`: accumulator += scale * gradient."""

import torch
from torch import Tensor

from helpers.kernels import checks, reference
from helpers.kernels.dispatch import BLOCK, NUM_WARPS, kernel, num_programs, runs_triton, writes
from helpers.kernels.memory_order import same_order


@torch.no_grad()
def accumulate_(accumulator: Tensor, gradient: Tensor, scale: float = 1.0) -> Tensor:
    """Add scale * gradient to the accumulator, in place, in one pass; return it. Local.

    accumulator: float32, of any shape and strides, dense. gradient: float32, bfloat16 or
    float16, of the same shape, on the same device, in memory of its own. The product is rounded
    to float32, then the sum: the same bits from kernel and reference. NaN and infinities are
    carried through.

    A kernel moves 10 bytes an element for a 16-bit gradient (reads 4 + 2, writes 4); where the
    two lie in different orders of memory, and on CPUs, the reference does it, in more passes.
    Raises TypeError for another dtype or a sparse tensor, ValueError for shapes or devices that
    differ. Chapter 09 builds it; `GradientAccumulator` uses it on GPUs.
    """
    for tensor, what in ((accumulator, "accumulator"), (gradient, "gradient")):
        checks.check_dense(tensor, what)
    checks.check_dtype(accumulator, "accumulator", torch.float32)
    checks.check_dtype(gradient, "gradient", torch.float32, torch.bfloat16, torch.float16)
    checks.check_alike(accumulator, gradient, "gradient")
    if not (runs_triton(accumulator, gradient) and same_order(accumulator, gradient)):
        return reference.accumulate_(accumulator, gradient, scale)
    if accumulator.numel():
        _launch(accumulator, gradient, float(scale))
    return accumulator


def _launch(accumulator: Tensor, gradient: Tensor, scale: float) -> None:
    with writes(accumulator):
        # A fused multiply-add would round once where two roundings are promised.
        kernel("accumulate", "accumulate_kernel")[(num_programs(accumulator.numel()),)](
            accumulator,
            gradient,
            scale,
            accumulator.numel(),
            BLOCK=BLOCK,
            num_warps=NUM_WARPS,
            enable_fp_fusion=False,
        )
