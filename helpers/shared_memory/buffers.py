"""Tensors that lie in memory of all ranks: made together, found again by where they lie."""

import itertools
import weakref
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from helpers import host_memory

from .peers import Peers


@dataclass(frozen=True)
class Buffer:
    """What a rank keeps of a tensor that each rank has made together with the others.

    number: the same on all ranks, from 1 on: one call of `Buffers.make` is one number.
    others: the other ranks' tensors, [N] as this rank's own, by rank. This rank's own is not
    among them: what is kept here must not keep it alive.
    """

    number: int
    others: dict[int, Tensor]

    def by_rank(self, own: Tensor) -> list[Tensor]:
        """Return every rank's tensor, `own` among them. Local."""
        return [self.others.get(rank, own) for rank in range(len(self.others) + 1)]

    def is_like(self, tensor: Tensor) -> bool:
        """Return whether a tensor that begins where this rank's own does is just that. Local."""
        other = next(iter(self.others.values()))
        return (
            tensor.shape == other.shape
            and tensor.dtype == other.dtype
            and tensor.is_contiguous()
            and not tensor.is_neg()  # then its elements are not what its memory holds
        )


class Buffers:
    """The shared tensors of one group that are alive in this process."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._numbers = itertools.count(1)
        self._by_address: dict[int, Buffer] = {}

    def make(
        self, num_elements: int, dtype: torch.dtype, group: dist.ProcessGroup, timeout_s: float
    ) -> Tensor:
        """Return a tensor [num_elements], zeros, which the other ranks see. Every rank must call.

        Raises ValueError on every rank where lengths or dtypes differ.
        """
        number, num_bytes = next(self._numbers), num_elements * dtype.itemsize
        blocks = self._open(num_elements, dtype, group)
        try:
            self._peers.meet((0, 0, number), timeout_s)  # now all have opened what is ours
            tensors = [
                torch.frombuffer(block.buffer, dtype=torch.uint8)[:num_bytes].view(dtype)
                for block in blocks
            ]
            mapping = blocks[self._peers.rank].buffer
        finally:
            for block in blocks:
                block.close()  # the tensors keep what they look at
        own = tensors[self._peers.rank]
        others = {rank: tensor for rank, tensor in enumerate(tensors) if tensor is not own}
        if num_bytes:
            self._keep(own.data_ptr(), Buffer(number, others), mapping)
        return own

    def find(self, tensor: Tensor) -> Buffer | None:
        """Return the buffer that this tensor is the whole of, if any. Local."""
        buffer = self._by_address.get(tensor.data_ptr())
        return buffer if buffer and buffer.is_like(tensor) else None

    def close(self) -> None:
        """Let go of the other ranks' memory. Local; tensors stay as they are."""
        self._by_address.clear()

    def _open(
        self, num_elements: int, dtype: torch.dtype, group: dist.ProcessGroup
    ) -> list[host_memory.SharedMemory]:
        size = max(1, num_elements * dtype.itemsize)
        own = host_memory.share(size)
        offered = [None] * self._peers.world_size
        blocks: list[host_memory.SharedMemory] = []
        try:
            dist.all_gather_object(offered, (f"{num_elements} x {dtype}", own.address), group=group)
            _check_alike([what for what, _ in offered])
            for rank, (_, address) in enumerate(offered):
                is_own = rank == self._peers.rank
                blocks.append(own if is_own else host_memory.attach(address, size))
        except BaseException:
            for block in [own, *blocks]:
                block.close()
            raise
        return blocks

    def _keep(self, address: int, buffer: Buffer, mapping: object) -> None:
        self._by_address[address] = buffer
        # Not the tensor but its memory: views may outlive it.
        weakref.finalize(mapping, self._by_address.pop, address, None).atexit = False


def _check_alike(offered: list[str]) -> None:
    if len(set(offered)) > 1:
        found = "; ".join(f"rank {rank}: {what}" for rank, what in enumerate(offered))
        raise ValueError(f"ranks differ in the memory that they are to share: {found}")
