"""All-reduce by hand, from send and receive: five algorithms, and one that chooses.

Each algorithm is one module of a few dozen lines. What they share: `peers` sends and receives,
`calls` checks what was passed and runs the steps. Chapter 08 builds them.
"""

from helpers.collectives.choice import ALGORITHMS, all_reduce, default_link
from helpers.collectives.doubling import all_reduce_doubling
from helpers.collectives.gather_broadcast import all_reduce_gather_broadcast
from helpers.collectives.halving_doubling import all_reduce_halving_doubling
from helpers.collectives.ring import all_gather_ring, all_reduce_ring, reduce_scatter_ring
from helpers.collectives.tree import all_reduce_tree

__all__ = [
    "ALGORITHMS",
    "all_gather_ring",
    "all_reduce",
    "all_reduce_doubling",
    "all_reduce_gather_broadcast",
    "all_reduce_halving_doubling",
    "all_reduce_ring",
    "all_reduce_tree",
    "default_link",
    "reduce_scatter_ring",
]
