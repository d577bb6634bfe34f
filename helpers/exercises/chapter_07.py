"""Checks of the chapter "Send and receive": patterns counted, neighbours, a pipelined chain."""

import math
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from helpers.exercises.checking import Wrong, exercise, expect_close
from helpers.link import Link
from helpers.process_group import Ranks, process_group
from helpers.traffic import count_traffic

#: Pattern -> how many times one message takes, on ports that carry one message each way at a time.
PATTERNS: dict[str, Callable[[int], int]] = {
    "shift": lambda n: min(n - 1, 1),
    "fan in": lambda n: n - 1,
    "fan out": lambda n: n - 1,
    "chain": lambda n: n - 1,
    "doubling": lambda n: (n - 1).bit_length(),
}


@exercise("07-pattern")
def pattern(solution: Callable[[str, int], int]) -> None:
    """Say how many messages' time a pattern takes on n ranks."""
    for name, expected in PATTERNS.items():
        for n in (1, 2, 3, 4, 5, 8, 9):
            found = solution(name, n)
            if found != expected(n):
                raise Wrong(
                    f"{name} on {n} ranks: found {found}, expected the time of {expected(n)}"
                )


@exercise("07-neighbours", ranks=True)
def neighbours(solution: Callable) -> None:
    """exchange(to_left, to_right) -> (from_left, from_right) on a ring, whoever is late.

    Every rank must call this.
    """
    with process_group(backend="gloo", timeout_s=1.5) as ranks:
        n, me = ranks.world_size, ranks.rank
        for late_rank in range(n):
            mine = [torch.full((4,), 10.0 * me + side, device=ranks.device) for side in (1, 2)]
            before = [tensor.clone() for tensor in mine]
            dist.barrier()
            if me == late_rank:
                time.sleep(0.05)
            found = solution(*mine)
            if not isinstance(found, tuple | list) or len(found) != 2:
                raise Wrong(f"returned {type(found).__name__}, expected (from_left, from_right)")
            case = f"with rank {late_rank} late, from the "
            expect_close(found[0], [10.0 * ((me - 1) % n) + 2] * 4, f"{case}left")
            expect_close(found[1], [10.0 * ((me + 1) % n) + 1] * 4, f"{case}right")
            if not all(map(torch.equal, mine, before)):
                raise Wrong("what was given to be sent has changed")
        dist.barrier()


#: A whole tensor of SIZE bytes takes 10 + 80 ms; cut into eight, a piece takes 20 ms.
CHAIN, SIZE, CHUNKS = Link(10e-3, 0.01), 800_008, 8
TRIES = 3


@exercise("07-chain", ranks=True)
def chain(solution: Callable[[torch.Tensor, int], None]) -> None:
    """forward(tensor, num_chunks): rank 0's tensor to all along a chain, in pieces, in time.

    Every rank must call this.
    """
    with process_group(backend=CHAIN, timeout_s=5) as ranks:
        # A busy machine delays a run now and then, and never hastens one: the fastest counts.
        fastest_s = math.inf
        for _ in range(TRIES):
            fastest_s = min(fastest_s, _forward(solution, ranks))
            is_late = torch.tensor([int(fastest_s > _most_s(ranks.world_size))])
            dist.all_reduce(is_late)
            if not is_late.item():
                break
        _expect_in_time(fastest_s, ranks.world_size)
        dist.barrier()


def _forward(solution: Callable[[torch.Tensor, int], None], ranks: Ranks) -> float:
    """Seconds of one run on this rank. Raises Wrong for what has come, or how many messages."""
    expected = torch.arange(SIZE // 8, dtype=torch.float64)  # in pieces of unequal length
    tensor = expected.clone() if ranks.rank == 0 else torch.zeros_like(expected)
    dist.barrier()
    with count_traffic() as traffic:
        begin_s = time.monotonic()
        solution(tensor, CHUNKS)
        took_s = time.monotonic() - begin_s
    wrong = (tensor != expected).sum().item()
    if wrong:
        raise Wrong(f"{wrong} of {len(tensor)} elements are not rank 0's")
    messages = CHUNKS if ranks.rank < ranks.world_size - 1 else 0
    if traffic.messages != messages:
        raise Wrong(f"sent {traffic.messages} messages, expected {messages}")
    return took_s


def _num_steps(world_size: int) -> int:
    """A piece moves on while the next one comes: so many pieces, one after the other."""
    return world_size - 2 + CHUNKS if world_size > 1 else 0


def _target_s(world_size: int) -> float:
    return _num_steps(world_size) * CHAIN.message_s(SIZE / CHUNKS)


def _most_s(world_size: int) -> float:
    """With some room."""
    return 1.25 * _target_s(world_size) + 0.02


def _expect_in_time(took_s: float, world_size: int) -> None:
    if took_s > _most_s(world_size):
        raise Wrong(
            f"took {1e3 * took_s:.0f} ms, expected {1e3 * _target_s(world_size):.0f} ms: "
            f"{_num_steps(world_size)} times one piece, and at most a quarter more"
        )
