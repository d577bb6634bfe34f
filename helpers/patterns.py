"""Patterns of messages between ranks, and how long they take on an emulated link."""

import time
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist

from helpers import launch
from helpers.link import Link, completions
from helpers.process_group import process_group

#: What one rank does in a pattern, given its rank.
Case = Callable[[int], object]


def messages(*pairs: tuple[int, int], size_bytes: int, times: int = 1) -> Case:
    """Return a case: messages between (sender, receiver), all posted at once, then waited for.

    Every rank must call the case. Each message has `size_bytes` bytes; the whole list is posted
    `times` times. Receives are posted before sends. Chapter 07 times it.
    """

    def case(rank: int) -> None:
        data, room = torch.zeros(2, size_bytes, dtype=torch.uint8)
        every = pairs * times
        works = [dist.irecv(room, sender) for sender, receiver in every if receiver == rank]
        works += [dist.isend(data, receiver) for sender, receiver in every if sender == rank]
        for work in works:
            work.wait()

    return case


def seconds_on(
    link: Link, world_size: int, cases: Mapping[str, Case], repeat: int = 3
) -> dict[str, list[float]]:
    """Return the seconds of each case on `link`, `repeat` of them, in that link's slow motion.

    Local: starts `world_size` ranks of its own. A case's clock starts when the first of its
    messages does (both its ends have posted it, their ports are free), and stops when the last
    rank that took part returns. So the ranks need not start together.
    ValueError: a case in which no rank sends.
    """
    by_rank = launch.run_function(_times, link, cases, repeat, nproc_per_node=world_size)
    spans = []
    for index, times in enumerate(zip(*by_rank, strict=True)):
        taken = [each for each in times if each is not None]
        if not taken:
            raise ValueError(f"case {list(cases)[index % len(cases)]!r}: no rank sends a message")
        starts, ends = zip(*taken, strict=True)
        spans.append(max(ends) - min(starts))
    return {name: spans[index :: len(cases)] for index, name in enumerate(cases)}


def _times(link: Link, cases: Mapping[str, Case], repeat: int) -> list[tuple[float, float] | None]:
    """On one rank: (start of the first message, end of the case), None where it had no part."""
    times: list[tuple[float, float] | None] = []
    with process_group(backend=link) as ranks:
        for case in list(cases.values()) * repeat:
            before = len(completions())
            case(ranks.rank)
            end_s = time.monotonic()
            starts = [each.ready_s for each in completions()[before:]]
            times.append((min(starts), end_s) if starts else None)
        dist.barrier()  # a rank without a part must not leave while others still send
    return times
