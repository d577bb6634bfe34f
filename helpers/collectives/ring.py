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
    reduce_scatter(chunks, peers)
    all_gather(chunks, peers)


def reduce_scatter(chunks: Sequence[Tensor], peers: Peers) -> None:
    """Afterwards chunk `rank` is summed over all ranks; the other chunks are sums half done."""
    rank, world_size = peers.rank, peers.world_size
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    buffer = torch.empty_like(chunks[0])  # no chunk is longer than the first
    for step in range(world_size - 1):
        outgoing = chunks[(rank - 1 - step) % world_size]
        summed = chunks[(rank - 2 - step) % world_size]
        incoming = buffer[: len(summed)]
        peers.exchange(outgoing, right, incoming, left)
        summed += incoming


def all_gather(chunks: Sequence[Tensor], peers: Peers) -> None:
    """Afterwards every rank has chunk 0 of rank 0, chunk 1 of rank 1, and so on."""
    rank, world_size = peers.rank, peers.world_size
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    for step in range(world_size - 1):
        outgoing = chunks[(rank - step) % world_size]
        incoming = chunks[(rank - 1 - step) % world_size]
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
        reduce_scatter(chunks, peers)
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
        all_gather(chunks, peers)
        write_back(flat, output)

    return run("ring all-gather", steps, output, group, async_op, check, (input, "input"))
