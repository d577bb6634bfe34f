"""The sum itself: segment by segment through the ranks' blocks."""

import itertools

import torch
from torch import Tensor

from .agreement import agree
from .peers import Peers

#: Measured best, 64 KB to 64 MB: smaller ones meet too often, larger ones leave the cache.
SEGMENT_BYTES = 1 << 21

#: Chunks begin at a cache line of their own: no two ranks write into one.
ALIGNMENT_BYTES = 64


def block_bytes(world_size: int) -> int:
    """Bytes that each rank shares: two segments, and two chunks of results. Local."""
    return 2 * (SEGMENT_BYTES + _chunk_bytes(SEGMENT_BYTES, world_size))


def _chunk_bytes(segment_bytes: int, world_size: int) -> int:
    """Bytes of each rank's chunk but the last, in whole cache lines."""
    lines = -(-segment_bytes // ALIGNMENT_BYTES)
    return -(-lines // world_size) * ALIGNMENT_BYTES


def chunk_ends(length: int, item_bytes: int, world_size: int) -> list[tuple[int, int]]:
    """Where each rank's chunk of `length` elements starts and ends. Local."""
    chunk = _chunk_bytes(length * item_bytes, world_size) // item_bytes
    ends = [min(rank * chunk, length) for rank in range(world_size + 1)]
    return list(itertools.pairwise(ends))


class SegmentedSum:
    """One flat tensor's way through the blocks. Every rank must call `run`.

    Of each segment a rank copies the other ranks' chunks into its block; after all have, it
    sums its own chunk, in rank order, into its block and its tensor; after all have, it copies
    the other chunks' sums out. The meeting for a sum serves the next segment's copies, too, so
    segments take turns in two places. A place is written again when all have met since it was
    read: inputs by `_reduce(k)`, before meeting k + 1, are overwritten by `_copy_in(k + 2)`
    after it; sums by `_copy_out(k)`, before meeting k + 2, by `_reduce(k + 2)` after it.
    """

    def __init__(self, peers: Peers, flat: Tensor, timeout_s: float) -> None:
        self._peers, self._timeout_s, self._flat = peers, timeout_s, flat
        self._segments = flat.split(SEGMENT_BYTES // flat.element_size())
        start_of_sums = 2 * SEGMENT_BYTES
        chunk_bytes = _chunk_bytes(SEGMENT_BYTES, peers.world_size)
        self._inputs = [self._places(turn * SEGMENT_BYTES, SEGMENT_BYTES) for turn in (0, 1)]
        self._sums = [
            self._places(start_of_sums + turn * chunk_bytes, chunk_bytes) for turn in (0, 1)
        ]

    def _places(self, start: int, num_bytes: int) -> list[Tensor]:
        """The same bytes of every rank's block, as numbers of the tensor's kind."""
        return [
            area[start : start + num_bytes].view(self._flat.dtype) for area in self._peers.areas
        ]

    def run(self) -> None:
        """Put the sum over all ranks in the tensor's place.

        Raises ValueError on every rank where lengths or dtypes differ; RuntimeError as `meet`.
        """
        count = len(self._segments) if len(self._flat) else 0
        if count:
            self._copy_in(0)
        for k in range(count):
            self._meet()
            self._reduce(k)
            if k + 1 < count:
                self._copy_in(k + 1)
            if k > 0:
                self._copy_out(k - 1)
        self._meet()
        if count:
            self._copy_out(count - 1)

    def _meet(self) -> None:
        while any(agree(self._peers, self._flat, 0, self._timeout_s)):
            pass  # some came with a shared buffer, but not all: they come again without

    def _chunks(self, k: int) -> list[tuple[int, int]]:
        """Where each rank's chunk of segment k starts and ends."""
        item_bytes = self._flat.element_size()
        return chunk_ends(len(self._segments[k]), item_bytes, self._peers.world_size)

    def _copy_in(self, k: int) -> None:
        segment, place = self._segments[k], self._inputs[k % 2][self._peers.rank]
        start, end = self._chunks(k)[self._peers.rank]
        place[:start].copy_(segment[:start])
        place[end : len(segment)].copy_(segment[end:])

    def _reduce(self, k: int) -> None:
        rank = self._peers.rank
        start, end = self._chunks(k)[rank]
        own = self._segments[k][start:end]
        addends = [place[start:end] for place in self._inputs[k % 2]]
        addends[rank] = own
        total = self._sums[k % 2][rank][: end - start]
        torch.add(addends[0], addends[1], out=total)
        for addend in addends[2:]:
            total.add_(addend)
        own.copy_(total)

    def _copy_out(self, k: int) -> None:
        for rank, (start, end) in enumerate(self._chunks(k)):
            if rank != self._peers.rank:
                self._segments[k][start:end].copy_(self._sums[k % 2][rank][: end - start])
