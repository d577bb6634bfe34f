"""Who sends what to whom, round by round, in each way to all-reduce."""

import math
from collections.abc import Callable
from numbers import Real
from typing import NamedTuple

#: The ways that `schedule` knows.
ALGORITHMS = ("gather_broadcast", "tree", "ring", "doubling", "halving_doubling")


class Message(NamedTuple):
    """One message: ranks within the group, and its bytes."""

    sender: int
    receiver: int
    size_bytes: int


Rounds = list[list[Message]]


def schedule(algorithm: str, size_bytes: int, world_size: int, *, element_bytes: int = 1) -> Rounds:
    """Return the messages of one all-reduce, a list a round, in the order of their posting. Local.

    A rank sends in a round what it has received in the rounds before. Rank 0 is the root.
    Where the world is no power of two, doubling and halving_doubling fold each rank from the
    largest power of two, p, upwards into rank - p first, and send it the sum at the end.
    `element_bytes`: chunks are cut between elements, and the first ones take what is left over;
    the default cuts between bytes. A message of an empty chunk is a message of zero bytes.

    Raises ValueError, naming it, for an unknown algorithm, a world below 1, a size that is
    negative, not finite or no multiple of element_bytes. Chapter 08 builds the collectives
    themselves.
    """
    check_arguments(algorithm, size_bytes, world_size, element_bytes)
    rounds = _ROUNDS[algorithm](size_bytes // element_bytes, world_size)
    return [
        [Message(sender, receiver, length * element_bytes) for sender, receiver, length in messages]
        for messages in rounds
    ]


def check_arguments(
    algorithm: str, size_bytes: int, world_size: int, element_bytes: int = 1
) -> None:
    """Raise ValueError as `schedule` does. Local."""
    if algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm: found {algorithm!r}, expected one of {', '.join(ALGORITHMS)}")
    if not isinstance(world_size, int) or isinstance(world_size, bool) or world_size < 1:
        raise ValueError(f"world_size: found {world_size!r}, expected a number of ranks, 1 or more")
    if not isinstance(element_bytes, int) or element_bytes < 1:
        raise ValueError(f"element_bytes: found {element_bytes!r}, expected 1 or more")
    is_size = isinstance(size_bytes, Real) and math.isfinite(size_bytes)
    if not (is_size and size_bytes >= 0 and size_bytes % element_bytes == 0):
        raise ValueError(
            f"size_bytes: found {size_bytes!r}, expected a multiple of {element_bytes}, 0 or more"
        )


def chunk_lengths(length: int, num_chunks: int) -> list[int]:
    """Lengths of nearly equal chunks, the longer ones first, as torch.tensor_split cuts. Local."""
    short, left_over = divmod(int(length), num_chunks)
    return [short + (index < left_over) for index in range(num_chunks)]


def power_of_two(world_size: int) -> int:
    """The largest power of two that is no larger than world_size. Local."""
    return 1 << (world_size.bit_length() - 1)


def _gather_broadcast(length: int, world_size: int) -> Rounds:
    gather = [Message(rank, 0, length) for rank in range(1, world_size)]
    return [gather, *_reversed([gather])] if gather else []


def _tree(length: int, world_size: int) -> Rounds:
    reduce = []
    for distance in _powers_below(world_size):
        senders = range(distance, world_size, 2 * distance)
        reduce.append([Message(rank, rank - distance, length) for rank in senders])
    return reduce + _reversed(reduce)


def _ring(length: int, world_size: int) -> Rounds:
    lengths = chunk_lengths(length, world_size)
    # In step s, rank r passes on chunk r - s: what it received, and summed, in the step before.
    return [
        [
            Message(rank, (rank + 1) % world_size, lengths[(rank - step) % world_size])
            for rank in range(world_size)
        ]
        for step in range(2 * (world_size - 1))
    ]


def _doubling(length: int, world_size: int) -> Rounds:
    num_paired = power_of_two(world_size)
    exchanges = [
        [Message(rank, rank ^ distance, length) for rank in range(num_paired)]
        for distance in _powers_below(num_paired)
    ]
    return _folded(exchanges, length, world_size)


def _halving_doubling(length: int, world_size: int) -> Rounds:
    num_paired = power_of_two(world_size)
    held = [length] * num_paired  # what each rank still sums
    halving = []
    for distance in reversed(_powers_below(num_paired)):
        messages = []
        for rank in range(num_paired):
            lower, upper = chunk_lengths(held[rank], 2)
            keeps_upper = bool(rank & distance)
            messages.append(Message(rank, rank ^ distance, lower if keeps_upper else upper))
            held[rank] = upper if keeps_upper else lower
        halving.append(messages)
    return _folded(halving + _reversed(halving), length, world_size)


def _folded(exchanges: Rounds, length: int, world_size: int) -> Rounds:
    num_paired = power_of_two(world_size)
    fold = [Message(rank, rank - num_paired, length) for rank in range(num_paired, world_size)]
    return [fold, *exchanges, *_reversed([fold])] if fold else exchanges


def _reversed(rounds: Rounds) -> Rounds:
    """The way back: last round first, and every receiver sends as much as it got."""
    return [
        [Message(receiver, sender, length) for sender, receiver, length in messages]
        for messages in reversed(rounds)
    ]


def _powers_below(number: int) -> list[int]:
    return [1 << bit for bit in range((number - 1).bit_length())]


_ROUNDS: dict[str, Callable[[int, int], Rounds]] = {
    "gather_broadcast": _gather_broadcast,
    "tree": _tree,
    "ring": _ring,
    "doubling": _doubling,
    "halving_doubling": _halving_doubling,
}
