"""Checks of the chapter "Sharding the data"."""

import itertools
from collections import Counter
from collections.abc import Callable

import torch
from torch.utils.data import TensorDataset

from helpers import problems
from helpers.exercises.checking import Wrong, exercise, expect_close
from helpers.process_group import process_group
from helpers.sampler import DistributedSampler


@exercise("06-rest")
def rest(solution: Callable) -> None:
    """Deal out what is left of an epoch to another number of ranks, as the helper does."""
    for num_samples, consumed, world_size in itertools.product((12, 13), (0, 6, 9, 12), (1, 2, 4)):
        order = torch.randperm(num_samples, generator=torch.Generator().manual_seed(5)).tolist()
        kept = list(order)
        for rank in range(world_size):
            found = solution(order, consumed, rank, world_size)
            case = f"{num_samples} samples, {consumed} consumed, rank {rank} of {world_size}"
            _expect_indices(case, found, _rest(num_samples, consumed, rank, world_size))
            if order != kept:
                raise Wrong(f"{case}: the order that was handed in has changed")


def _rest(num_samples: int, consumed: int, rank: int, world_size: int) -> list[int]:
    sampler = DistributedSampler(range(num_samples), world_size, rank, seed=5)
    sampler.load_state_dict(sampler.state_dict() | {"consumed": consumed})
    return list(sampler)


def _expect_indices(case: str, found, expected: list[int]) -> None:
    if not isinstance(found, list) or not all(isinstance(index, int) for index in found):
        raise Wrong(f"{case}: returned {found!r}, expected a list of indices")
    if found != expected:
        raise Wrong(f"{case}: returned {found}, expected {expected}")


@exercise("06-exact", ranks=True)
def exact(solution: Callable) -> None:
    """Evaluate over ranks, where the samples do not divide and one rank may have none."""
    model = problems.make_mlp(dtype=torch.float64)
    with process_group(backend="gloo", timeout_s=10.0):
        for num_samples, batch_size in ((5, 2), (1, 4), (13, 3)):
            dataset = _known_answers(model, num_samples)
            found = solution(model, dataset, batch_size)
            expected = sum(index % 3 != 1 for index in range(num_samples)) / num_samples
            expect_close(found, expected, f"the accuracy on {num_samples} samples")


def _known_answers(model: torch.nn.Module, num_samples: int) -> TensorDataset:
    """Digits labelled so that the model is right on two of each three."""
    images = problems.digits(torch.float64).train[0][:num_samples]
    with torch.no_grad():
        labels = model(images).argmax(dim=1)
    is_wrong = torch.arange(num_samples) % 3 == 1
    return TensorDataset(images, torch.where(is_wrong, (labels + 1) % 10, labels))


BATCH_SIZE = 4


@exercise("06-lengths")
def lengths(solution: Callable) -> None:
    """Batches of like lengths: each sample once, no rank much longer than another, reshuffled."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(1, 200, (48,), generator=generator).tolist()
    for world_size in (1, 2, 3):
        by_epoch = [_dealt(solution, drawn, world_size, epoch) for epoch in (0, 1)]
        for by_rank in by_epoch:
            _expect_each_once(by_rank, len(drawn), world_size)
            _expect_little_waiting(by_rank, drawn, world_size)
        if by_epoch[0] == by_epoch[1]:
            raise Wrong(f"{world_size} ranks: epochs 0 and 1 have the same batches in one order")


def _dealt(solution: Callable, drawn: list[int], world_size: int, epoch: int) -> list[list]:
    arguments = [(drawn, BATCH_SIZE, rank, world_size, epoch) for rank in range(world_size)]
    return [solution(*each) for each in arguments]


def _expect_each_once(by_rank: list[list], num_samples: int, world_size: int) -> None:
    counts = [len(batches) for batches in by_rank]
    expected = num_samples // (BATCH_SIZE * world_size)
    if counts != [expected] * world_size:
        raise Wrong(f"{world_size} ranks have {counts} batches, expected {expected} each")
    batches = list(itertools.chain(*by_rank))
    if {len(batch) for batch in batches} != {BATCH_SIZE}:
        raise Wrong(f"batches of {sorted({len(batch) for batch in batches})}, expected 4 samples")
    seen = Counter(itertools.chain(*batches))
    if seen != Counter(range(num_samples)):
        raise Wrong(f"{world_size} ranks see {len(seen)} of {num_samples} samples, expected all")


def _expect_little_waiting(by_rank: list[list], drawn: list[int], world_size: int) -> None:
    """The slowest rank sets the pace of a step: compare the sum of these with a sorted list's."""
    steps = zip(*by_rank, strict=True)
    found = sum(max(drawn[i] for batch in step for i in batch) for step in steps)
    best = sum(sorted(drawn, reverse=True)[:: BATCH_SIZE * world_size])
    if found > 1.02 * best:
        raise Wrong(
            f"{world_size} ranks: padded lengths add up to {found} over the steps, "
            f"{found / best:.2f} times the least, allowed 1.02"
        )
