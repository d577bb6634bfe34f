"""Checks of chapter 12: one divisor for the windows of all ranks; models that are quiet together.

Torch's DistributedDataParallel is the model of both, so that a solution works with either class.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from helpers import problems
from helpers.compare import gradients
from helpers.exercises.checking import Wrong, exercise, expect_close
from helpers.problems import IGNORE_INDEX, count_tokens, token_loss_sum
from helpers.process_group import Ranks, process_group
from helpers.traffic import count_traffic

FLAG = "require_backward_grad_sync"
TINY = {"width": 8, "depth": 1, "heads": 1, "context": 8, "dtype": torch.float64}


def _micro_batch(length: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A row of 8 random tokens, of whose targets the first `length` count."""
    tokens = torch.randint(96, (1, 9), generator=torch.Generator().manual_seed(seed))
    targets = tokens[:, 1:].clone()
    targets[:, length:] = IGNORE_INDEX
    return tokens[:, :-1], targets


def _windows(world_size: int, silent: bool) -> list[list]:
    """Each rank's window: unequal counts and lengths, one micro-batch that counts nothing."""
    lengths = [[0, 8, 3], [1], [5, 2], [7, 7, 1, 4]][:world_size]
    return [
        [_micro_batch(0 if silent else length, 10 * rank + i) for i, length in enumerate(own)]
        for rank, own in enumerate(lengths)
    ]


@exercise("12-normaliser", ranks=True)
def normaliser(loss_factor: Callable[[Sequence, Callable], float]) -> None:
    """loss_factor(window, count): what a summed loss is multiplied by. Every rank; one collective.

    Judged by the gradient that torch's class leaves, against one process on all windows.
    """
    with process_group(backend="gloo", timeout_s=4) as ranks:
        for silent in (False, True):
            windows = _windows(ranks.world_size, silent)
            with count_traffic() as traffic:
                factor = loss_factor(windows[ranks.rank], count_tokens)
            called = sum(traffic.collectives.values())
            if silent:
                expect_close(factor, 0.0, "the factor where nobody has anything to count")
                continue
            if called > 1:
                raise Wrong(f"{called} collectives, expected one")
            _expect_whole_gradient(factor, windows, ranks)


def _expect_whole_gradient(factor: float, windows: list[list], ranks: Ranks) -> None:
    model, alone = DistributedDataParallel(problems.make_gpt(**TINY)), problems.make_gpt(**TINY)
    window = windows[ranks.rank]
    for i, batch in enumerate(window):
        with nullcontext() if i == len(window) - 1 else model.no_sync():
            (token_loss_sum(model, batch) * factor).backward()
    everything = [batch for each in windows for batch in each]
    total = sum(map(count_tokens, everything))
    (sum(token_loss_sum(alone, batch) for batch in everything) / total).backward()
    found, expected = gradients(model.module), gradients(alone)
    vectors = [torch.cat([x.flatten() for x in each.values()]) for each in (found, expected)]
    expect_close(*vectors, "the gradient over all ranks' windows")


class Stop(Exception):
    """What the check raises inside the context."""


@exercise("12-quiet", ranks=True)
def quiet(quiet_all: Callable) -> None:
    """quiet_all(*models): no model synchronises inside; each has its own flag back afterwards."""
    with process_group(backend="gloo", timeout_s=4):
        models = [DistributedDataParallel(nn.Linear(2, 1)) for _ in range(2)]
        _expect_calls(models, 2, "outside the context, before it")
        with quiet_all(*models):
            _expect_calls(models, 0, "inside the context")
            with quiet_all(models[0]):
                pass
            _expect_calls(models, 0, "inside the context, after a nested one")
        _expect_calls(models, 2, "after the context")
        _expect_restored(models, quiet_all)
        _expect_calls(models, 2, "after an exception inside the context")
        _expect_refused_whole(models, quiet_all)


def _expect_calls(models: list[nn.Module], expected: int, when: str) -> None:
    with count_traffic() as traffic:
        for model in models:
            model(torch.ones(3, 2)).sum().backward()
    found = traffic.collectives["all_reduce"]
    if found != expected:
        raise Wrong(f"{found} all-reduces of two models {when}, expected {expected}")


def _expect_restored(models: list[nn.Module], quiet_all: Callable) -> None:
    """One of the models is quiet already, and the block ends with an exception."""
    setattr(models[1], FLAG, False)
    try:
        with quiet_all(*models):
            raise Stop
    except Stop:
        pass
    else:
        raise Wrong("an exception inside the context did not come out of it")
    flags = [getattr(model, FLAG) for model in models]
    if flags != [True, False]:
        raise Wrong(f"flags {flags} after an exception, expected those of before: [True, False]")
    setattr(models[1], FLAG, True)


def _expect_refused_whole(models: list[nn.Module], quiet_all: Callable) -> None:
    """A model that has no flag is refused, and the others are left as they were."""
    try:
        with quiet_all(models[0], nn.Linear(2, 1)):
            raise Wrong("a model without the flag was taken, expected an AttributeError")
    except AttributeError:
        pass
    if not getattr(models[0], FLAG):
        raise Wrong("a model stays quiet after another one was refused")
