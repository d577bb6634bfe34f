"""The sum of squares of a tensor: one read, one partial sum a program."""

import triton
import triton.language as tl

from helpers.kernels.jit.blocks import block_offsets, load


@triton.jit
def squares_kernel(
    tensor, partial_sums, num_elements, BLOCKS_PER_PROGRAM: tl.constexpr, BLOCK: tl.constexpr
):
    """`partial_sums`: float32 [grid]. The order of addition is fixed: the same bits each time."""
    program = tl.program_id(0)
    sums = tl.zeros([BLOCK], tl.float32)
    for step in range(BLOCKS_PER_PROGRAM):
        block = program.to(tl.int64) * BLOCKS_PER_PROGRAM + step
        offsets = block_offsets(block, BLOCK)
        if (block + 1) * BLOCK <= num_elements:
            values = load(tensor, offsets, num_elements, True)
        else:
            values = load(tensor, offsets, num_elements, False)
        sums += values * values
    tl.store(partial_sums + program, tl.sum(sums, axis=0))
