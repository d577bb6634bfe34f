"""All-reduce through one rank: it receives every tensor, and sends the sum to everyone.

The obvious way, and the cheapest to write. On n ranks rank 0 receives n - 1 tensors and sends
n - 1, one after the other, while the others wait.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from helpers.collectives.calls import sum_in_place
from helpers.collectives.peers import Peers

ROOT = 0


def all_reduce_gather_broadcast(
    tensor: Tensor,
    group: dist.ProcessGroup | None = None,
    *,
    async_op: bool = False,
    check: bool = False,
) -> dist.Work | None:
    """Sum `tensor` over the group, in place, through rank 0. Every rank must call this.

    Arguments, result and errors as in `collectives.all_reduce`. Chapter 08.
    """
    return sum_in_place("gather_broadcast", gather_broadcast, tensor, group, async_op, check)


def gather_broadcast(flat: Tensor, peers: Peers) -> None:
    if peers.rank != ROOT:
        peers.send(flat, ROOT)
        peers.receive(flat, ROOT)
        return
    others = range(1, peers.world_size)
    incoming = torch.empty_like(flat)
    for other in others:  # in the order of ranks, so that the sum has the same bits every time
        peers.receive(incoming, other)
        flat += incoming
    for other in others:
        peers.send(flat, other)
