"""Many tensors to many places in one launch: one program a chunk of one tensor."""

import triton
import triton.language as tl

from helpers.kernels.jit.blocks import load, store


@triton.jit
def copy_kernel(like, chunks, scale, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    """`chunks`: int64 [grid, 4]: address to read, address to write, elements, is aligned.

    `like`: any tensor of the dtype. A chunk is aligned where both addresses are multiples of
    16 bytes: then, and only then, the compiler may be told so, and moves 16 bytes at a time.
    """
    row = chunks + 4 * tl.program_id(0)
    source, target = tl.load(row), tl.load(row + 1)
    num_elements = tl.load(row + 2)
    is_aligned = tl.load(row + 3) != 0
    for step in range(CHUNK // BLOCK):
        offsets = step * BLOCK + tl.arange(0, BLOCK)
        if is_aligned & ((step + 1) * BLOCK <= num_elements):
            from_16 = tl.multiple_of(source.to(like.dtype), 16)
            to_16 = tl.multiple_of(target.to(like.dtype), 16)
            store(to_16, offsets, scale * load(from_16, offsets, 0, True), 0, True)
        else:
            values = load(source.to(like.dtype), offsets, num_elements, False)
            store(target.to(like.dtype), offsets, scale * values, num_elements, False)
