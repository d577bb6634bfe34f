"""Who sends which chunk to whom in which step: a model of each algorithm, without any process."""

from collections.abc import Callable
from dataclasses import dataclass

Holding = tuple[tuple[frozenset[int], ...], ...]  # [rank][chunk]: the ranks that its sum contains


@dataclass(frozen=True)
class Transfer:
    """One message: `chunks` of the sender are added to the receiver's, or take their place."""

    sender: int
    receiver: int
    chunks: tuple[int, ...]
    adds: bool


Steps = list[list[Transfer]]


def schedule(algorithm: str, world_size: int) -> tuple[Steps, int]:
    """Return the steps of an all-reduce, each a list of messages at once, and its chunks. Local.

    algorithm: a name of `helpers.collectives.ALGORITHMS`. In a step each rank sends at most one
    message and receives at most one. ValueError: an unknown algorithm, a world below 1.
    """
    if algorithm not in _SCHEDULES or world_size < 1:
        known = ", ".join(_SCHEDULES)
        raise ValueError(
            f"schedule: found {algorithm!r} on {world_size} ranks, expected 1 or more of: {known}"
        )
    return _SCHEDULES[algorithm](world_size)


def holdings(algorithm: str, world_size: int) -> list[Holding]:
    """Return what each rank holds of each chunk before the first step and after each. Local.

    A chunk's sum is the set of ranks whose numbers it contains. ValueError: a number would be
    added twice (the schedule is wrong), or as in `schedule`.
    """
    steps, num_chunks = schedule(algorithm, world_size)
    held = [[frozenset([rank])] * num_chunks for rank in range(world_size)]
    states = [tuple(map(tuple, held))]
    for step in steps:
        before = states[-1]
        for transfer in step:
            for chunk in transfer.chunks:
                sent, own = before[transfer.sender][chunk], held[transfer.receiver][chunk]
                if transfer.adds and sent & own:
                    raise ValueError(f"{transfer} adds {sorted(sent & own)} twice")
                held[transfer.receiver][chunk] = sent | own if transfer.adds else sent
        states.append(tuple(map(tuple, held)))
    return states


def distances(world_size: int) -> list[int]:
    """Return 1, 2, 4, ... below the world size. Local."""
    return [2**power for power in range((world_size - 1).bit_length())]


def _back(steps: Steps) -> Steps:
    """The way back: the same messages in the other direction and order, replacing."""
    return [
        [Transfer(each.receiver, each.sender, each.chunks, adds=False) for each in step]
        for step in reversed(steps)
    ]


def _gather_broadcast(world_size: int) -> tuple[Steps, int]:
    gather = [[Transfer(rank, 0, (0,), adds=True)] for rank in range(1, world_size)]
    return gather + _back(gather)[::-1], 1


def _tree(world_size: int) -> tuple[Steps, int]:
    up = [
        [
            Transfer(rank, rank - distance, (0,), adds=True)
            for rank in range(distance, world_size, 2 * distance)
        ]
        for distance in distances(world_size)
    ]
    return up + _back(up), 1


def _ring(world_size: int) -> tuple[Steps, int]:
    def step(shift: int, adds: bool) -> list[Transfer]:
        return [
            Transfer(rank, (rank + 1) % world_size, ((rank + shift) % world_size,), adds)
            for rank in range(world_size)
        ]

    reduce_scatter = [step(-number, adds=True) for number in range(world_size - 1)]
    all_gather = [step(1 - number, adds=False) for number in range(world_size - 1)]
    return reduce_scatter + all_gather, world_size


def _folded(world_size: int, core: Callable[[int], tuple[Steps, int]]) -> tuple[Steps, int]:
    """`core` on the largest power of two; the ranks beyond it add in before, and copy after."""
    power = 1 << (world_size.bit_length() - 1)
    steps, num_chunks = core(power)
    every = tuple(range(num_chunks))
    fold = [Transfer(rank, rank - power, every, adds=True) for rank in range(power, world_size)]
    return ([fold, *steps, *_back([fold])] if fold else steps), num_chunks


def _doubling_core(power: int) -> tuple[Steps, int]:
    return [
        [Transfer(rank, rank ^ distance, (0,), adds=True) for rank in range(power)]
        for distance in distances(power)
    ], 1


def _halving_doubling_core(power: int) -> tuple[Steps, int]:
    halving = []
    for distance in reversed(distances(power)):
        step = []
        for rank in range(power):
            partner = rank ^ distance
            low = partner // distance * distance  # the chunks that end at the partner's side
            step.append(Transfer(rank, partner, tuple(range(low, low + distance)), adds=True))
        halving.append(step)
    return halving + _back(halving), power


_SCHEDULES: dict[str, Callable[[int], tuple[Steps, int]]] = {
    "gather_broadcast": _gather_broadcast,
    "tree": _tree,
    "ring": _ring,
    "doubling": lambda world_size: _folded(world_size, _doubling_core),
    "halving_doubling": lambda world_size: _folded(world_size, _halving_doubling_core),
}
