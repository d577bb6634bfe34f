"""Worlds that are no power of two, for algorithms that pair ranks."""

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from helpers.collectives.peers import Peers


def folded(steps: Callable[[Tensor, Peers, int], None]) -> Callable[[Tensor, Peers], None]:
    """Return `steps` for any world: they run among the first p ranks, p a power of two.

    Each rank from p upwards adds its tensor to that of rank - p before them, and gets the sum
    after them: two more messages of a whole tensor, one before the other.
    """

    @functools.wraps(steps)
    def with_fold(flat: Tensor, peers: Peers) -> None:
        num_paired = 1 << (peers.world_size.bit_length() - 1)  # p, the largest that fits
        if peers.rank >= num_paired:
            peers.send(flat, peers.rank - num_paired)
            peers.receive(flat, peers.rank - num_paired)
            return
        extra = peers.rank + num_paired
        if extra < peers.world_size:
            incoming = torch.empty_like(flat)
            peers.receive(incoming, extra)
            flat += incoming
        steps(flat, peers, num_paired)
        if extra < peers.world_size:
            peers.send(flat, extra)

    return with_fold
