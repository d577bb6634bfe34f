"""The equality gate: the same training in one process, in micro-batches, and on several ranks."""

import itertools
import math
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
    ranks: within backward, or in its method `average_gradients`, called after the last one if
    there is one. One with `no_sync` skips averaging until then. None is `DataParallelNaive`.
    Ranks but the first start from other numbers, so that `wrap` has to make them equal.

    Compared are parameters and buffers at the start, then loss, gradients, parameters and buffers
    of each step on each rank. The error names the first that differs: variant, step, rank, and
    the first tensor in the model's order whose difference is above 1e-12 of the norm of all of
    its kind (1e-5 in float32); how far off is told relative to that tensor itself. NaN equals
    NaN, but a loss must be finite.
    Returns the largest error found, as a part of that norm.

    Raises ValueError for another dtype, numbers of steps, ranks or micro-batches below 1 or none
    of them, too few batches, fewer samples than parts, or a loss of the reference that is not
    finite; RankFailed where a rank fails, as one does on complex parameters or buffers. A rank
    that is missing from a collective costs 30 s. Chapter 05 builds what it checks.
    """
    _check_numbers(micro_batches, ranks, steps)
    first = list(itertools.islice(batches, steps))
    training = noted.Training(make_model, make_optimizer, loss_sum, first, count, dtype)
    _check(training, steps, max(micro_batches) * max(ranks))
    from helpers.launch import run_function  # not needed on a rank, and slow to import

    work = training, micro_batches, wrap
    # A world of its own: code that asks for its rank must not act as several ranks do.
    (expected,) = run_function(_alone, training, nproc_per_node=1)
    _check_losses(expected)
    largest = 0.0
    for world_size in ranks:
        found = run_function(_against, *work, expected, nproc_per_node=world_size)
        largest = max(largest, _judge(found, micro_batches))
    return largest


def _check_numbers(micro_batches: Sequence[int], ranks: Sequence[int], steps: int) -> None:
    for name, found in {"micro_batches": micro_batches, "ranks": ranks}.items():
        if not (isinstance(found, Sequence) and found and all(map(_is_positive, found))):
            raise ValueError(
                f"{name}: found {found!r}, expected whole numbers, 1 or more, at least one of them"
            )
    if not _is_positive(steps):
        raise ValueError(f"steps: found {steps!r}, expected a whole number, 1 or more")


def _is_positive(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 1


def _check(training: noted.Training, steps: int, num_parts: int) -> None:
    if training.dtype not in TOLERANCES:
        known = " or ".join(str(dtype) for dtype in TOLERANCES)
        raise ValueError(
            f"found {training.dtype}, expected {known}: less precise numbers hide what is wrong"
        )
    if len(training.batches) < steps:
        raise ValueError(f"{len(training.batches)} batches, expected {steps}, one a step")
    smallest = min(num_samples(batch) for batch in training.batches)
    if smallest < num_parts:
        raise ValueError(
            f"a batch of {smallest} samples, expected at least {num_parts}: one for each "
            "micro-batch of each rank"
        )


def _check_losses(expected: list[noted.Note]) -> None:
    """Once a loss is NaN all numbers are, in whatever way they are split."""
    for note in expected:
        loss = note.tensors[""].item() if note.kind == "loss" else 0.0
        if not math.isfinite(loss):
            raise ValueError(
                f"step {note.step}: the loss in one process is {loss}, expected a finite one"
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
