"""`pack` and `unpack`: many tensors into the views of a bucket, or back, in one launch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from helpers.kernels import checks, reference
from helpers.kernels.dispatch import BLOCK, NUM_WARPS, kernel, runs_triton, writes
from helpers.kernels.memory_order import same_order

#: Elements of one program: enough that starting it costs little beside moving them.
CHUNK = 4 * BLOCK


@torch.no_grad()
def pack(tensors: Sequence[Tensor], views: Sequence[Tensor], scale: float = 1.0) -> None:
    """Write scale * each tensor into its view, in one launch for all. Local.

    tensors: floating point, of any shapes and strides, dense. views: where each goes, of the
    same shape, as `helpers.buckets.Bucket.views`; all of one dtype and device. Each product is
    rounded once, to float32 and then to the dtype of both, if it is narrower. A tensor may be
    its own view.

    Where tensor and view lie in different orders of memory, and on CPUs, torch copies them one
    by one. Raises TypeError for mixed dtypes or devices, sparse tensors, or no floating point;
    ValueError where numbers or shapes differ. Chapter 09 builds it; buckets use it on GPUs.
    """
    checks.check_pairs(tensors, views)
    pairs = [(t, v) for t, v in zip(tensors, views, strict=True) if t.numel()]
    in_one = [pair for pair in pairs if runs_triton(*pair) and same_order(*pair)]
    if in_one:
        _launch(in_one, scale)
    chosen = set(map(id, in_one))
    for tensor, view in (pair for pair in pairs if id(pair) not in chosen):
        reference.pack([tensor], [view], scale)


def unpack(views: Sequence[Tensor], tensors: Sequence[Tensor], scale: float = 1.0) -> None:
    """Write scale * each view into its tensor, in one launch for all: `pack`'s way back. Local."""
    pack(views, tensors, scale)


def _launch(pairs: list[tuple[Tensor, Tensor]], scale: float) -> None:
    first, _ = pairs[0]
    chunks = chunk_table(pairs).to(first.device)
    with writes(*(view for _, view in pairs)):
        kernel("pack", "copy_kernel")[(len(chunks),)](
            first, chunks, float(scale), CHUNK=CHUNK, BLOCK=BLOCK, num_warps=NUM_WARPS
        )


def chunk_table(pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Return a row for each CHUNK of each pair, int64 [num_chunks, 4], on the CPU. Local.

    A row: address to read, address to write, number of elements, and whether both addresses are
    multiples of 16 bytes.
    """
    size_bytes = pairs[0][0].element_size()
    ends = torch.tensor([[s.data_ptr(), t.data_ptr(), s.numel()] for s, t in pairs])
    num_chunks = (ends[:, 2] + CHUNK - 1) // CHUNK
    rows = ends.repeat_interleave(num_chunks, 0)
    first_rows = num_chunks.cumsum(0) - num_chunks
    number = torch.arange(len(rows)) - first_rows.repeat_interleave(num_chunks)
    done = number * CHUNK
    rows[:, :2] += (done * size_bytes)[:, None]
    rows[:, 2] = (rows[:, 2] - done).clamp(max=CHUNK)
    is_aligned = (rows[:, :2] % 16 == 0).all(1, keepdim=True)
    return torch.cat([rows, is_aligned], 1)
