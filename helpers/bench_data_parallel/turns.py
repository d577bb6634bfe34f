"""Contenders take turns, so that a machine that slows down slows all of them down."""

from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed as dist

Turn = Callable[[], float]


def take_turns(
    turns: Mapping[str, Turn], rounds: int, tick: Callable[[], None], *, warmup: int = 1
) -> dict[str, list[float]]:
    """Return what each turn returned, by name and round, in the order A B C, C B A, A B C ...

    Every rank must call this; a turn starts on all ranks together. `tick()` is called after each
    round, the `warmup` first ones included, whose values are thrown away.
    """
    samples: dict[str, list[float]] = {name: [] for name in turns}
    for index in range(warmup + rounds):
        for name in turns if index % 2 == 0 else reversed(turns):
            dist.barrier()
            value = turns[name]()
            if index >= warmup:
                samples[name].append(value)
        tick()
    return samples


def of_all_ranks(
    samples: dict[str, list[float]], combine: Callable[[Any], float]
) -> dict[str, tuple[float, ...]]:
    """Return the samples with `combine` over the ranks in each round; the same on all ranks.

    Every rank must call this.
    """
    by_rank: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(by_rank, samples)
    return {
        name: tuple(map(combine, zip(*(here[name] for here in by_rank), strict=True)))
        for name in samples
    }
