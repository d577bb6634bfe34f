"""All-reduce by recursive doubling: ranks swap their sums with ranks ever farther away.

After swaps with the ranks at distance 1, 2, 4, ... a sum covers 2, 4, 8, ... ranks: log2 n
messages, the fewest possible, of a whole tensor each. Source: Thakur, Rabenseifner and Gropp 2005.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from helpers.collectives.calls import sum_in_place
from helpers.collectives.fold import folded
from helpers.collectives.peers import Peers


def all_reduce_doubling(
    tensor: Tensor,
    group: dist.ProcessGroup | None = None,
    *,
    async_op: bool = False,
    check: bool = False,
) -> dist.Work | None:
    """Sum `tensor` over the group, in place, by recursive doubling. Every rank must call this.

    Arguments, result and errors as in `collectives.all_reduce`. Chapter 08.
    """
    return sum_in_place("doubling", doubling, tensor, group, async_op, check)


@folded
def doubling(flat: Tensor, peers: Peers, num_paired: int) -> None:
    incoming = torch.empty_like(flat)
    distance = 1
    while distance < num_paired:
        partner = peers.rank ^ distance
        peers.exchange(flat, partner, incoming, partner)
        flat += incoming  # a + b here and b + a there: the same bits
        distance *= 2
