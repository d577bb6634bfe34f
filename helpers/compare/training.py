"""The equality gate: the same training in one process, in micro-batches, and on several ranks."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from helpers.accumulate.windows import num_samples
from helpers.compare import steps as noted
from helpers.process_group import process_group

#: How far rounding may carry numbers of a few steps apart; what is wrong is far above it.
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5}


def assert_same_training(
    make_model: Callable[[], nn.Module],
    make_optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    loss_sum: Callable[[nn.Module, Any], Tensor],
    batches: Iterable[Any],
    count: Callable[[Any], int],
    *,
    micro_batches: Sequence[int] = (1, 2, 4),
    ranks: Sequence[int] = (1, 2, 4),
    wrap: Callable[[nn.Module], nn.Module] | None = None,
    dtype: torch.dtype = torch.float64,
    steps: int = 3,
) -> float:
    """Raise AssertionError unless every way to split the batches trains the same model. Local.

    The reference is one process on whole batches, without a wrapper. Against it stand K
    micro-batches on W ranks, for each K of `micro_batches` and W of `ranks`, launched from here;
    functions of a notebook cell will do. `make_model()` and the optimizer of
    `make_optimizer(parameters)` start anew each time, from the same seed. `batches` are global
    batches, of which the first `steps` are trained on (3: an optimizer's state then counts); each
    rank takes a contiguous part, one sample more or less where they do not divide.
    `loss_sum(model, batch)` is a sum over what `count(batch)` counts. Parameters, and inputs that
    are floating point, are cast to `dtype`.

    `wrap(module)` runs on every rank and returns the model that averages gradients over the
    ranks: within backward, or in its method `average_gradients`, called after the last one. One
    with `no_sync` skips it until then. None is `DataParallelNaive`. Ranks but the first start
    from other numbers, so that `wrap` has to make them equal.

    Compared are parameters and buffers at the start, then loss, gradients, parameters and buffers
    of each step on each rank. The error names the first that differs: variant, step, rank, and
    the first tensor in the model's order whose difference is above 1e-12 of the norm of all of
    its kind (1e-5 in float32); how far off is told relative to that tensor itself.
    Returns the largest error found, as a part of that norm.

    Raises ValueError for another dtype, too few batches, or fewer samples than parts; RankFailed
    where a rank fails. A rank that is missing from a collective costs 30 s. Chapter 05 builds
    what it checks.
    """
    training = noted.Training(
        make_model,
        make_optimizer,
        loss_sum,
        list(itertools.islice(batches, steps)),
        count,
        dtype,
    )
    _check(training, steps, max(micro_batches) * max(ranks))
    from helpers.launch import run_function  # not needed on a rank, and slow to import

    work = training, micro_batches, wrap
    # A world of its own: code that asks for its rank must not act as several ranks do.
    (expected,) = run_function(_alone, training, nproc_per_node=1)
    largest = 0.0
    for world_size in ranks:
        found = run_function(_against, *work, expected, nproc_per_node=world_size)
        largest = max(largest, _judge(found, micro_batches))
    return largest


def _check(training: noted.Training, steps: int, num_parts: int) -> None:
    if training.dtype not in TOLERANCES:
        known = " or ".join(str(dtype) for dtype in TOLERANCES)
        raise ValueError(
            f"found {training.dtype}, expected {known}: less precise numbers hide what is wrong"
        )
    if len(training.batches) < max(steps, 1):
        raise ValueError(f"{len(training.batches)} batches, expected {max(steps, 1)}, one a step")
    smallest = min(num_samples(batch) for batch in training.batches)
    if smallest < num_parts:
        raise ValueError(
            f"a batch of {smallest} samples, expected at least {num_parts}: one for each "
            "micro-batch of each rank"
        )


def _alone(training: noted.Training) -> list[noted.Note]:
    with process_group(timeout_s=30) as ranks:
        return noted.train(training, ranks, 1, wrap=None)


Found = list[tuple[noted.Difference | None, float]]


def _against(
    training: noted.Training,
    micro_batches: Sequence[int],
    wrap: Callable[[nn.Module], nn.Module] | None,
    expected: list[noted.Note],
) -> Found:
    """Return for each number of micro-batches how this rank's training differs."""
    from helpers.data_parallel import DataParallelNaive

    with process_group(timeout_s=30) as ranks:
        found = []
        for num_micro_batches in micro_batches:
            notes = noted.train(training, ranks, num_micro_batches, wrap or DataParallelNaive)
            tolerance = TOLERANCES[training.dtype]
            found.append(noted.first_difference(notes, expected, tolerance))
        return found


def _judge(found: list[Found], micro_batches: Sequence[int]) -> float:
    """Raise for the first difference by micro-batches, time and rank; return the largest error."""
    for num_micro_batches, by_rank in zip(micro_batches, zip(*found, strict=True), strict=True):
        differences = [(each, rank) for rank, (each, _) in enumerate(by_rank) if each]
        if not differences:
            continue
        (_, step, message), rank = min(differences, key=lambda each: (each[0].index, each[1]))
        when = "before the first step" if step is None else f"step {step}"
        raise AssertionError(
            f"{_plural(len(found), 'rank')} x {_plural(num_micro_batches, 'micro-batch')} "
            f"differ from one process on the whole batch: {when}, rank {rank}: {message}"
        )
    return max(error for by_rank in found for _, error in by_rank)


def _plural(number: int, noun: str) -> str:
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}{'es' if noun.endswith('ch') else 's'}"
