"""All-reduce by a binomial tree: sums go up to rank 0, the result comes down the same way.

On n ranks there are ceil(log2 n) levels, so few latencies; but each message is a whole tensor.
Source: Thakur, Rabenseifner and Gropp 2005.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from helpers.collectives.calls import sum_in_place
from helpers.collectives.peers import Peers


def all_reduce_tree(
    tensor: Tensor,
    group: dist.ProcessGroup | None = None,
    *,
    async_op: bool = False,
    check: bool = False,
) -> dist.Work | None:
    """Sum `tensor` over the group, in place, by a binomial tree. Every rank must call this.

    Arguments, result and errors as in `collectives.all_reduce`. Chapter 08.
    """
    return sum_in_place("tree", tree, tensor, group, async_op, check)


def tree(flat: Tensor, peers: Peers) -> None:
    parent, children = family(peers.rank, peers.world_size)
    incoming = torch.empty_like(flat) if children else flat
    for child in children:  # the nearest first: it has the fewest children to wait for
        peers.receive(incoming, child)
        flat += incoming
    if parent is not None:
        peers.send(flat, parent)
        peers.receive(flat, parent)
    for child in reversed(children):
        peers.send(flat, child)


def family(rank: int, world_size: int) -> tuple[int | None, list[int]]:
    """Return (parent, children) of a rank: their distances are powers of two.

    A rank's lowest 1 in binary is the distance to its parent, and no child is that far. So 6,
    which is 110, hangs below 4 and has the child 7; 0 has no parent, and the children 1, 2, 4.
    """
    children, distance = [], 1
    while distance < world_size and not rank & distance:
        if rank + distance < world_size:
            children.append(rank + distance)
        distance *= 2
    return (rank - distance if rank else None), children
