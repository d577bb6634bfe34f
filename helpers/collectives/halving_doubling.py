"""All-reduce by recursive halving and doubling: as few bytes as a ring, fewer messages.

Partners split what they hold: each gives one half away and sums the other, so that after log2 n
swaps every rank has the sum of 1/n of the tensor. The way back gathers the halves again.
Source: Rabenseifner 2004; Thakur, Rabenseifner and Gropp 2005.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from helpers.collectives.calls import sum_in_place
from helpers.collectives.fold import folded
from helpers.collectives.peers import Peers


def all_reduce_halving_doubling(
    tensor: Tensor,
    group: dist.ProcessGroup | None = None,
    *,
    async_op: bool = False,
    check: bool = False,
) -> dist.Work | None:
    """Sum `tensor` over the group, in place, by halving and doubling. Every rank must call this.

    Arguments, result and errors as in `collectives.all_reduce`. Chapter 08.
    """
    return sum_in_place("halving_doubling", halving_doubling, tensor, group, async_op, check)


@folded
def halving_doubling(flat: Tensor, peers: Peers, num_paired: int) -> None:
    buffer = torch.empty_like(flat.tensor_split(2)[0])  # no half is longer than this one
    held, swaps = flat, []
    distance = num_paired // 2
    while distance:
        partner = peers.rank ^ distance
        lower, upper = held.tensor_split(2)
        kept, given = (upper, lower) if peers.rank & distance else (lower, upper)
        incoming = buffer[: len(kept)]
        peers.exchange(given, partner, incoming, partner)
        kept += incoming
        swaps.append((partner, kept, given))
        held = kept
        distance //= 2
    for partner, kept, given in reversed(swaps):
        peers.exchange(kept, partner, given, partner)
