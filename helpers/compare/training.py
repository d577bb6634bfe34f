"""The equality gate as one assertion, for a notebook's cell or a test."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from helpers.accumulate.windows import map_tensors, num_samples
from helpers.compare.outcome import Outcome, Plan
from helpers.compare.same_training import is_positive, same_training
from helpers.compare.setup import Training


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
    resume: bool = True,
    tolerance: float | None = None,
    timeout_s: float = 60.0,
    make_scheduler: Callable[[torch.optim.Optimizer], Any] | None = None,
    clip: Callable[[list[nn.Parameter]], Any] | None = None,
    train_step: Callable[..., Any] | None = None,
    save_state: Callable[..., Any] | None = None,
    load_state: Callable[..., None] | None = None,
    same_start: bool = False,
    slices: int = 1,
) -> float:
    """Raise AssertionError unless every way to split the batches trains the same model. Local.

    The reference is one process on whole batches, without a wrapper: the mean of the loss, one
    backward, one step. Against it stand K micro-batches on W ranks, for each K of
    `micro_batches` and W of `ranks`, launched from here; functions of a notebook cell will do.
    With `resume`, also a stop half-way: model, optimizer and scheduler begin anew and load a
    checkpoint, of as many ranks and of the W before. `make_model()` and the optimizer of
    `make_optimizer(parameters)` start anew each time, from the same seed. `batches` are global
    batches, of which the first `steps` are trained on (3: an optimizer's state then counts); each
    rank takes a contiguous part, one sample more or less where they do not divide.
    `loss_sum(model, batch)` is a sum over what `count(batch)` counts. Parameters, and inputs that
    are floating point, are cast to `dtype`.

    `wrap(module)` runs on every rank, in place where it replaces parameters (fully_shard), and
    returns the model that averages gradients over the ranks: within backward, or in its method
    `average_gradients`, called after the last one if there is one. One with `no_sync` skips
    averaging until then. None is `DataParallelNaive`. Ranks but the first start from other
    numbers, so that `wrap` has to make them equal.

    `python -m helpers.gate --help` describes make_scheduler, clip, train_step (your own code of a
    step, in place of the gate's), save_state and load_state, same_start and slices.

    Compared are parameters and buffers at the start, then loss, gradients, parameters, buffers
    and learning rates of each step on each rank. The error names the first that differs:
    variant, step, rank, and the first tensor in the model's order whose difference is above 1e-12
    of the norm of all of its kind (or above 4 times what permuted samples move, which is measured:
    always in float32, in float64 where something differs; or `tolerance`). How far off is told
    relative to that tensor itself. NaN equals NaN, but a loss must be finite. What differs is
    tried once more in processes of its own, which an earlier training cannot have changed. A
    second line tells the likely cause, where one was tested and fits. Returns the largest error
    found, as a part of that norm.

    Raises ValueError for another dtype, numbers of steps, ranks or micro-batches below 1 or none
    of them, too few batches, fewer samples than parts, or a loss of the reference that is not
    finite; TypeError for a model in place of make_model or a function in that of batches;
    RankFailed where a rank fails, as one does on complex parameters or buffers. A rank that is
    missing from a collective costs 30 s; a launch ends after `timeout_s`. Chapter 05 builds what
    it checks.
    """
    _check_kinds(make_model, batches)
    first = first_batches(batches, steps)
    training = Training(
        *(make_model, make_optimizer, loss_sum, first, count, dtype, wrap, make_scheduler),
        *(clip, train_step, save_state, load_state, same_start, slices),
    )
    plan = Plan(micro_batches, ranks, resume, tolerance, timeout_s)
    return max(map(_green, same_training(training, plan)))


def first_batches(batches: Iterable[Any], steps: int) -> list[Any]:
    """Return copies of as many as there are steps: a view would travel with all that it is of.

    Local. Raises ValueError for too few, steps below 1 or parts of unequal length, and TypeError
    for what holds something else than tensors.
    """
    if not is_positive(steps):
        raise ValueError(f"steps: found {steps!r}, expected a whole number, 1 or more")
    first = list(itertools.islice(batches, steps))
    for batch in first:
        num_samples(batch)
    if len(first) < steps:
        raise ValueError(f"{len(first)} batches, expected {steps}, one a step")
    return [map_tensors(batch, Tensor.clone) for batch in first]


def _green(outcome: Outcome) -> float:
    if outcome.is_same is False:
        raise AssertionError(str(outcome))
    return outcome.error


def _check_kinds(make_model: Any, batches: Any) -> None:
    """A model can be called as well, and the gate's script has a function that gives batches."""
    if isinstance(make_model, nn.Module) or not callable(make_model):
        found = type(make_model).__name__
        raise TypeError(f"make_model: found a {found}, expected a function that makes the model")
    if not isinstance(batches, Iterable):
        found = type(batches).__name__
        raise TypeError(f"batches: found a {found}, expected batches, such as a list of them")
