"""All-reduce in one step: each rank reads what all ranks hold, and sums it itself.

A rank's workspace: signals, int32 [NUM_LANES, WORLD_SIZE], and then its data.
"""

import triton
import triton.language as tl

from helpers.kernels.jit.blocks import block_offsets, load, store

#: Programs that share the work, each with signals of its own: few enough to run all at once.
NUM_LANES = tl.constexpr(64)


@triton.jit(do_not_specialize=["rank", "round_number", "patience"])
def one_shot_kernel(
    out,
    workspaces,
    rank,
    round_number,
    num_elements,
    late,
    patience,
    WORLD_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """`workspaces`: int64 [WORLD_SIZE], addresses by rank. `late`: int32 [WORLD_SIZE], zeros.

    Between a rank's first signal and its second all may read its data; not before, not after.
    A program that has asked for a signal `patience` times goes on without, and marks the rank
    that it waited for in `late`: a kernel that waits for ever would hold the GPU for ever.
    """
    lane = tl.program_id(0)
    _tell(workspaces, lane, rank, 2 * round_number + 1, WORLD_SIZE)
    _wait(workspaces, lane, rank, 2 * round_number + 1, late, patience, WORLD_SIZE)
    for block in range(lane, tl.cdiv(num_elements, BLOCK), tl.num_programs(0)):
        offsets = block_offsets(tl.cast(block, tl.int64), BLOCK)
        if (tl.cast(block, tl.int64) + 1) * BLOCK <= num_elements:
            _sum(out, workspaces, offsets, num_elements, WORLD_SIZE, BLOCK, True)
        else:
            _sum(out, workspaces, offsets, num_elements, WORLD_SIZE, BLOCK, False)
    tl.debug_barrier()  # all threads of this program have read
    _tell(workspaces, lane, rank, 2 * round_number + 2, WORLD_SIZE)
    _wait(workspaces, lane, rank, 2 * round_number + 2, late, patience, WORLD_SIZE)


@triton.jit
def _sum(
    out,
    workspaces,
    offsets,
    num_elements,
    WORLD_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_FULL: tl.constexpr,
):
    """Add in rank order, in float32: the same bits on every rank."""
    total = tl.zeros([BLOCK], tl.float32)
    for peer in tl.static_range(WORLD_SIZE):
        workspace = tl.multiple_of(tl.load(workspaces + peer).to(out.dtype), 16)
        data = workspace + NUM_LANES * WORLD_SIZE * 32 // out.dtype.element_ty.primitive_bitwidth
        total += load(data, offsets, num_elements, IS_FULL)
    store(out, offsets, total, num_elements, IS_FULL)


@triton.jit
def _tell(workspaces, lane, rank, number, WORLD_SIZE: tl.constexpr):
    """Write the number into every rank's workspace; what was written before is seen with it."""
    for peer in tl.static_range(WORLD_SIZE):
        signals = tl.load(workspaces + peer).to(tl.pointer_type(tl.int32))
        tl.atomic_xchg(signals + lane * WORLD_SIZE + rank, number, sem="release", scope="sys")


@triton.jit
def _wait(workspaces, lane, rank, number, late, patience, WORLD_SIZE: tl.constexpr):
    """Wait until every rank has written the number, or a later one, here."""
    signals = tl.load(workspaces + rank).to(tl.pointer_type(tl.int32))
    for peer in tl.static_range(WORLD_SIZE):
        signal = signals + lane * WORLD_SIZE + peer
        left = patience
        while (tl.atomic_add(signal, 0, sem="acquire", scope="sys") < number) & (left > 0):
            left -= 1
        if left == 0:
            tl.store(late + peer, 1)
    tl.debug_barrier()  # no thread of this program reads before
