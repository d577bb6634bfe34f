"""accumulator += scale * gradient in one pass: 10 bytes an element for a bfloat16 gradient."""

import triton
import triton.language as tl

from helpers.kernels.jit.blocks import block_offsets, load, store


@triton.jit
def accumulate_kernel(accumulator, gradient, scale, num_elements, BLOCK: tl.constexpr):
    """One block a program. A whole one goes without a mask, which would narrow its loads."""
    block = tl.program_id(0)
    offsets = block_offsets(block, BLOCK)
    if (block + 1).to(tl.int64) * BLOCK <= num_elements:
        _add(accumulator, gradient, scale, offsets, num_elements, True)
    else:
        _add(accumulator, gradient, scale, offsets, num_elements, False)


@triton.jit
def _add(accumulator, gradient, scale, offsets, num_elements, IS_FULL: tl.constexpr):
    addend = scale * load(gradient, offsets, num_elements, IS_FULL)  # rounded here ...
    total = load(accumulator, offsets, num_elements, IS_FULL) + addend  # ... and here
    store(accumulator, offsets, total, num_elements, IS_FULL)
