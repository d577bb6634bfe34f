"""The seconds of a step whose gradients travel while backward goes on; what no plan can beat."""

import itertools
import math
from collections.abc import Sequence
from numbers import Real

from .predict import LinkLike, all_reduce_s


def transfers_s(
    sizes_bytes: Sequence[int], ready_s: Sequence[float], world_size: int, link: LinkLike
) -> list[tuple[float, float]]:
    """Return when each bucket's all-reduce starts and ends, in seconds of `ready_s`. Local.

    sizes_bytes: of the buckets, in sending order; ready_s: when the last gradient of each is
    ready. One all-reduce at a time, a ring, each as soon as its bucket is ready and the one
    before it has ended: start = max(end of the one before, ready), end = start + all_reduce_s.
    Of a link with a `world_size` of its own, that is the price.

    Raises ValueError for lengths that differ and times that are negative or not finite.
    Chapter 10.
    """
    _check(sizes_bytes, ready_s)
    ring_ranks = _ring_ranks(link, world_size)
    found, end_s = [], 0.0
    for size, ready in zip(sizes_bytes, ready_s, strict=True):
        start_s = max(end_s, ready)
        end_s = start_s + all_reduce_s("ring", size, ring_ranks, link)
        found.append((start_s, end_s))
    return found


def step_s(
    sizes_bytes: Sequence[int], ready_s: Sequence[float], world_size: int, link: LinkLike, *,
    forward_s: float = 0.0, backward_s: float = 0.0,
) -> float:  # fmt: skip
    """Return the predicted seconds of forward, backward and what of the transfer is left. Local.

    Arguments as `transfers_s`, with ready_s counted from the start of backward. After backward
    alone: give every bucket `backward_s` as the time at which it is ready. Raises ValueError as
    `transfers_s`. Chapter 10.
    """
    ends = [end for _, end in transfers_s(sizes_bytes, ready_s, world_size, link)]
    return forward_s + max([backward_s, *ends])


def overlap_lower_bound_s(
    sizes_bytes: Sequence[int], ready_s: Sequence[float], world_size: int, link: LinkLike, *,
    forward_s: float = 0.0, backward_s: float = 0.0,
) -> float:  # fmt: skip
    """Return seconds that no step can beat, however its gradients are cut and ordered. Local.

    sizes_bytes, ready_s: of each single gradient, in the order in which they become ready. Take
    the gradients from the j-th on. None of them can leave before ready_s[j], and at the least
    their bytes need one all-reduce: ready_s[j] + all_reduce_s(their bytes). The largest of these
    over all j bounds the transfer; `backward_s` bounds it too; forward comes before.

    Raises ValueError as `transfers_s`. Chapter 10.
    """
    _check(sizes_bytes, ready_s)
    ring_ranks = _ring_ranks(link, world_size)
    order = sorted(zip(ready_s, sizes_bytes, strict=True), reverse=True)
    left = itertools.accumulate(size for _, size in order)
    ends = [
        ready + all_reduce_s("ring", size, ring_ranks, link)
        for (ready, _), size in zip(order, left, strict=True)
    ]
    return forward_s + max([backward_s, *ends])


def best_cuts(
    sizes_bytes: Sequence[int], ready_s: Sequence[float], world_size: int, link: LinkLike
) -> list[int]:
    """Return where to cut gradients into buckets for the earliest end: the end of each. Local.

    Gradients in the order in which they become ready; buckets are runs of them. Exact, by
    dynamic programming: with f(i) the earliest end of the first i gradients,
    f(i) = min over j < i of max(f(j), ready of the i-th) + all_reduce_s(bytes of j to i).
    Where several plans end alike, one with fewer messages. No gradients: no buckets.

    Raises ValueError as `transfers_s`. Takes some N x N / 10**6 seconds for N gradients.
    Chapter 10.
    """
    _check(sizes_bytes, ready_s)
    ready = list(itertools.accumulate(ready_s, max))
    upto = [0, *itertools.accumulate(sizes_bytes)]
    ring_ranks = _ring_ranks(link, world_size)
    # All-reduces of n ranks are linear in the bytes but for rounding to whole ones.
    fixed_s = all_reduce_s("ring", 0, ring_ranks, link)
    s_per_byte = (all_reduce_s("ring", ring_ranks, ring_ranks, link) - fixed_s) / ring_ranks
    best: list[tuple[float, int, int]] = [(0.0, 0, 0)]  # end, messages, the cut before
    for i in range(1, len(upto)):
        best.append(
            min(
                (
                    max(end_s, ready[i - 1]) + fixed_s + (upto[i] - upto[j]) * s_per_byte,
                    messages + 1,
                    j,
                )
                for j, (end_s, messages, _) in enumerate(best)
            )
        )
    cuts, at = [], len(sizes_bytes)
    while at:
        cuts.append(at)
        at = best[at][2]
    return cuts[::-1]


def _ring_ranks(link: LinkLike, world_size: int) -> int:
    """For how many ranks an emulated link prices its collectives."""
    return getattr(link, "world_size", None) or world_size


def _check(sizes_bytes: Sequence[int], ready_s: Sequence[float]) -> None:
    if len(sizes_bytes) != len(ready_s):
        raise ValueError(f"found {len(sizes_bytes)} sizes and {len(ready_s)} times, expected pairs")
    for name, values in (("sizes_bytes", sizes_bytes), ("ready_s", ready_s)):
        for value in values:
            if not (isinstance(value, Real) and 0 <= value < math.inf):
                raise ValueError(f"{name}: found {value!r}, expected 0 or more, finite")
