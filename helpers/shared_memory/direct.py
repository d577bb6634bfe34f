"""The sum of tensors that lie in shared memory themselves: nothing is copied in or out."""

from torch import Tensor

from .agreement import agree
from .buffers import Buffer
from .peers import Peers
from .segments import chunk_ends

#: Summed, then handed out while it is still in the processor's cache.
PIECE_BYTES = 1 << 20


def sum_directly(peers: Peers, flat: Tensor, buffer: Buffer, timeout_s: float) -> bool:
    """Put the sum over all ranks into every rank's tensor; return False if not all came with one.

    Every rank must call this, or `SegmentedSum.run`, which answers False's `agree` as well.
    Two meetings. Between them a rank has its chunk of *all* ranks' tensors for itself: it alone
    reads and writes there. After the second, nobody reads or writes in another's tensor, so what
    each then does with its own (the next backward fills it) disturbs no rank, however slow.
    Raises as `agree`.
    """
    if any(number != buffer.number for number in agree(peers, flat, buffer.number, timeout_s)):
        return False
    _sum_chunk(peers.rank, buffer.by_rank(flat))
    agree(peers, flat, buffer.number, timeout_s)
    return True


def _sum_chunk(rank: int, tensors: list[Tensor]) -> None:
    """Sum this rank's chunk of all ranks' tensors, in rank order, into each of them."""
    item_bytes = tensors[0].dtype.itemsize
    start, end = chunk_ends(len(tensors[0]), item_bytes, len(tensors))[rank]
    step = PIECE_BYTES // item_bytes
    for first in range(start, end, step):
        total, *others = (tensor[first : min(first + step, end)] for tensor in tensors)
        for addend in others:
            total.add_(addend)
        for copy in others:
            copy.copy_(total)
