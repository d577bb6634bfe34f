"""What all kernels share: which elements a program has, and how it loads and stores them."""

import triton
import triton.language as tl

from helpers.kernels.dispatch import is_interpreted

#: Triton's interpreter cuts a float32 off where a GPU rounds it to the nearest bfloat16, and
#: gets bfloat16 numbers below the normal ones wrong, both ways.
IS_INTERPRETED = tl.constexpr(is_interpreted())


@triton.jit
def block_offsets(block, BLOCK: tl.constexpr):
    """Offsets of a block's elements, int64: from 2^31 elements on, int32 would wrap around."""
    return block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)


@triton.jit
def load(pointer, offsets, num_elements, IS_FULL: tl.constexpr):
    """Elements of a block as float32; beyond the end, zeros."""
    if IS_FULL:
        values = tl.load(pointer + offsets)
    else:
        values = tl.load(pointer + offsets, mask=offsets < num_elements, other=0.0)
    if IS_INTERPRETED and pointer.dtype.element_ty == tl.bfloat16:
        bits = values.to(tl.int16, bitcast=True).to(tl.int32) << 16
        values = bits.to(tl.float32, bitcast=True)
    return values.to(tl.float32)


@triton.jit
def store(pointer, offsets, values, num_elements, IS_FULL: tl.constexpr):
    """Round values to the pointer's dtype and store them; nothing beyond the end."""
    if IS_INTERPRETED and pointer.dtype.element_ty == tl.bfloat16:
        values = nearest_bfloat16(values)
    else:
        values = values.to(pointer.dtype.element_ty)
    if IS_FULL:
        tl.store(pointer + offsets, values)
    else:
        tl.store(pointer + offsets, values, mask=offsets < num_elements)


@triton.jit
def nearest_bfloat16(values):
    """The nearest bfloat16, by its bits: ties to even; NaN stays NaN."""
    bits = values.to(tl.int32, bitcast=True)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000
    rounded = tl.where(values != values, 0x7FC00000, rounded)
    return (rounded >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
