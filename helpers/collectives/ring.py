"""All-reduce by a ring: each rank sends to its right neighbour and receives from its left one.

The tensor is cut into as many chunks as there are ranks. First every chunk goes round the ring
and is summed on its way (reduce-scatter), then every sum goes round (all-gather). On n ranks a
rank sends 2 (n - 1) messages of 1/n of the tensor: bytes hardly grow with n, latency does.
Source: Patarasuk and Yuan 2009.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from helpers.collectives.calls import flat_of, run, sum_in_place, write_back
from helpers.collectives.peers import Peers


def all_reduce_ring(
    tensor: Tensor,
    group: dist.ProcessGroup | None = None,
    *,
    async_op: bool = False,
    check: bool = False,
) -> dist.Work | None:
    """Sum `tensor` over the group, in place, by a ring. Every rank must call this.

    Arguments, result and errors as in `collectives.all_reduce`. Chapter 08.
    """
    return sum_in_place("ring", ring, tensor, group, async_op, check)


def ring(flat: Tensor, peers: Peers) -> None:
    chunks = flat.tensor_split(peers.world_size)
    reduce_scatter(chunks, peers, first=peers.rank)
    all_gather(chunks, peers, first=peers.rank + 1)


def reduce_scatter(chunks: Sequence[Tensor], peers: Peers, first: int) -> None:
    """Sum one chunk over all ranks: chunk `first` + 1; the others are left half done.

    A rank sends chunk `first` to begin with, and then always the one that it has just added to.
    `first` is one higher on each next rank; all numbers are modulo world_size.
    """
    world_size = peers.world_size
    right, left = (peers.rank + 1) % world_size, (peers.rank - 1) % world_size
    buffer = torch.empty_like(chunks[0])  # no chunk is longer than the first
    for step in range(world_size - 1):
        outgoing = chunks[(first - step) % world_size]
        summed = chunks[(first - step - 1) % world_size]
        incoming = buffer[: len(summed)]
        peers.exchange(outgoing, right, incoming, left)
        summed += incoming


def all_gather(chunks: Sequence[Tensor], peers: Peers, first: int) -> None:
    """Fill all chunks, given that each rank has its chunk `first` ready; numbers as above."""
    world_size = peers.world_size
    right, left = (peers.rank + 1) % world_size, (peers.rank - 1) % world_size
    for step in range(world_size - 1):
        outgoing = chunks[(first - step) % world_size]
        incoming = chunks[(first - step - 1) % world_size]
        peers.exchange(outgoing, right, incoming, left)


def reduce_scatter_ring(
    output: Tensor,
    input: Tensor,
    group: dist.ProcessGroup | None = None,
    *,
    async_op: bool = False,
    check: bool = False,
) -> dist.Work | None:
    """Write this rank's chunk of the sum of `input` to `output`. Every rank must call this.

    Rank r owns chunk r of `input.flatten().tensor_split(world_size)`: nearly equal lengths, the
    longer ones first. `output` has that many elements and input's dtype; `input`, of equal
    shape on all ranks, keeps its values, at the price of one copy. Sends n - 1 chunks.

    Raises ValueError where output has another length or dtype; else as `collectives.all_reduce`.
    """

    def steps(peers: Peers) -> None:
        chunks = flat_of(input).clone().tensor_split(peers.world_size)
        reduce_scatter(chunks, peers, first=peers.rank - 1)
        output.copy_(chunks[peers.rank].view_as(output))

    chunk = (output, "output")
    return run("ring reduce-scatter", steps, input, group, async_op, check, chunk)


def all_gather_ring(
    output: Tensor,
    input: Tensor,
    group: dist.ProcessGroup | None = None,
    *,
    async_op: bool = False,
    check: bool = False,
) -> dist.Work | None:
    """Write the `input` of each rank r to chunk r of `output`. Every rank must call this.

    Chunk r is that of `output.flatten().tensor_split(world_size)`, as in `reduce_scatter_ring`:
    `output` has equal shape on all ranks, `input` as many elements as this rank's chunk, and
    output's dtype. Sends n - 1 chunks.

    Raises ValueError where input has another length or dtype; else as `collectives.all_reduce`.
    """

    def steps(peers: Peers) -> None:
        flat = flat_of(output)
        chunks = flat.tensor_split(peers.world_size)
        chunks[peers.rank].copy_(input.reshape(-1))
        all_gather(chunks, peers, first=peers.rank)
        write_back(flat, output)

    return run("ring all-gather", steps, output, group, async_op, check, (input, "input"))
