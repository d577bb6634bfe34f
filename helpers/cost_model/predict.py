"""Messages, bytes and seconds of an all-reduce, predicted on the one-port model."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from .schedule import ALGORITHMS, check_arguments, chunk_lengths, power_of_two, schedule

BYTES_PER_GB = 1e9


class LinkLike(Protocol):
    """What a prediction needs of a helpers.link.Link."""

    @property
    def latency_s(self) -> float: ...
    @property
    def bandwidth_gb_per_s(self) -> float: ...


@dataclass(frozen=True)
class CriticalPath:
    """The longest chain of messages that wait for one another, and the bytes in them."""

    messages: float
    sent_bytes: float

    def seconds(self, link: LinkLike) -> float:
        """Return messages x latency + bytes / bandwidth. Local."""
        transfer_s = self.sent_bytes / (link.bandwidth_gb_per_s * BYTES_PER_GB)
        return self.messages * link.latency_s + transfer_s


def critical_path(
    algorithm: str, size_bytes: int, world_size: int, *, element_bytes: int = 1
) -> CriticalPath:
    """Return the messages and bytes that an all-reduce must wait for, one by one. Local.

    One-port, full-duplex model: a message occupies its sender's outgoing and its receiver's
    incoming port for latency + size / bandwidth, so an exchange costs one message, and n - 1
    messages into one rank cost n - 1. Summing itself is free. With S = `size_bytes` of a tensor,
    n ranks, p the largest power of two up to n:

    - gather_broadcast: 2 (n - 1) messages of S, through the root's ports
    - tree: 2 ceil(log2 n) messages of S
    - ring: 2 (n - 1) messages of S / n, rounded up to whole elements
    - doubling: log2 p messages of S, and 2 more of S where n > p
    - halving_doubling: 2 log2 p messages, together 2 (p - 1) / p S, and 2 of S where n > p

    A world of one: zero. Raises ValueError as `schedule`. Sources: Hockney 1994 (latency and
    bandwidth); Thakur, Rabenseifner and Gropp 2005 (tree, doubling, halving_doubling);
    Patarasuk and Yuan 2009 (ring). Chapter 08.
    """
    check_arguments(algorithm, size_bytes, world_size, element_bytes)
    lengths = _PATHS[algorithm](int(size_bytes) // element_bytes, world_size)
    return CriticalPath(len(lengths), sum(lengths) * element_bytes)


def _fold(length: int, world_size: int) -> list[int]:
    return [length, length] if world_size > power_of_two(world_size) else []


def _halvings(length: int, world_size: int) -> list[int]:
    num_halvings = power_of_two(world_size).bit_length() - 1
    return [-(-length // 2**halving) for halving in range(1, num_halvings + 1)]


#: Lengths, in elements, of the messages on the critical path of n elements among n ranks.
_PATHS: dict[str, Callable[[int, int], list[int]]] = {
    "gather_broadcast": lambda length, n: [length] * (2 * (n - 1)),
    "tree": lambda length, n: [length] * (2 * (n - 1).bit_length()),
    "ring": lambda length, n: [chunk_lengths(length, n)[0]] * (2 * (n - 1)),
    "doubling": lambda length, n: [length] * (power_of_two(n).bit_length() - 1) + _fold(length, n),
    "halving_doubling": lambda length, n: 2 * _halvings(length, n) + _fold(length, n),
}


def all_reduce_s(algorithm: str, size_bytes: int, world_size: int, link: LinkLike) -> float:
    """Return the predicted seconds of one all-reduce of `size_bytes` by hand. Local.

    `link`: a helpers.link.Link, or anything with latency_s and bandwidth_gb_per_s (one direction,
    GB = 1e9 bytes); a slowed link gives its slow-motion seconds. Its `world_size` is not used: it
    prices torch's collectives, while ours send as many messages as there are ranks for. Nor are
    `slow_ranks` and stalls: this is the time among equal ranks, which slow ones are held against.

    Raises ValueError as `schedule`. Source: see `critical_path`. Chapter 08.
    """
    return critical_path(algorithm, size_bytes, world_size).seconds(link)


def choose(size_bytes: int, world_size: int, link: LinkLike) -> str:
    """Return the algorithm with the least predicted seconds. Local.

    The same on every rank that passes the same values: nothing is measured, and where several
    cost the same it is the one with fewest messages, then the earliest of `ALGORITHMS`.
    Raises ValueError as `schedule`. Chapter 08.
    """
    paths = {name: critical_path(name, size_bytes, world_size) for name in ALGORITHMS}
    return min(paths, key=lambda name: (paths[name].seconds(link), paths[name].messages))


def traffic_per_rank(
    algorithm: str, size_bytes: int, world_size: int, *, element_bytes: int = 1
) -> list[tuple[int, int]]:
    """Return (messages, bytes) that each rank sends in one all-reduce, by rank. Local.

    What helpers.traffic counts; on the critical path there may be more (a ring's neighbours
    send at once) or less. Arguments, folding and ValueError as in `schedule`. Chapter 08.
    """
    rounds = schedule(algorithm, size_bytes, world_size, element_bytes=element_bytes)
    traffic = [(0, 0)] * world_size
    for messages in rounds:
        for sender, _, sent_bytes in messages:
            count, total_bytes = traffic[sender]
            traffic[sender] = count + 1, total_bytes + sent_bytes
    return traffic
