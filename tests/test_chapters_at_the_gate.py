"""Training loops of the chapters, held against the equality gate.

What a chapter calls right is green. What it calls wrong is red, and for the reason that the
chapter tells, where the gate knows it.
"""

import functools
from typing import Any

import notebook_cells
import pytest
import torch
import torch.distributed as dist
from gates_together import gates_together
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from helpers import problems
from helpers.compare import assert_same_training

SAMPLES = problems.classification_loss_sum, problems.count_samples
TOKENS = problems.token_loss_sum, problems.count_tokens
SGD = functools.partial(torch.optim.SGD, lr=0.1)
MLP = functools.partial(problems.make_mlp, (64, 16, 10))


class Unchecked:
    """Stands for `exercises` in a solution's cell: other tests check those."""

    def check(self, *_: Any, **__: Any) -> bool:
        return True


@functools.cache
def names(number: str) -> dict[str, Any]:
    """What a chapter defines, its exercises' solutions included."""
    path = notebook_cells.chapter(number)
    cells = notebook_cells.code_cells(notebook_cells.read(path))
    found = notebook_cells.namespace(path) | {"exercises": Unchecked()}
    for cell in cells:
        if "solution" in notebook_cells.tags(cell):
            notebook_cells.execute(cell, found, f"{path.stem} solution")
    return found


def digits() -> list:
    """Two batches whose parts are unequal."""
    data = problems.digits().train
    return [tuple(part[60 * i : 60 * i + 50 - i] for part in data) for i in range(2)]


def lines() -> list:
    """Two batches of lines of 1 to 16 tokens, the longest first."""
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(96, (2, 12, 17), generator=draw)
    is_padding = torch.arange(16) >= torch.linspace(16, 1, 12).long()[:, None]
    pairs = ((each[:, :-1], each[:, 1:].masked_fill(is_padding, -100)) for each in tokens)
    return list(pairs)


def gpt() -> nn.Module:
    return problems.make_gpt(width=8, depth=1, heads=1, context=16)


def accumulating(backward, *loss):
    """One step of one process: backward(model, window, ...) leaves the gradients."""

    def step(model, optimizer, micro_batches):
        optimizer.zero_grad()
        told = backward(model, micro_batches, *loss)
        optimizer.step()
        return told

    return step


def scaled(loop):
    """One step of several: loop(model, window, factor) with what a mean needs under DDP."""

    def step(model, optimizer, micro_batches):
        optimizer.zero_grad()
        total = torch.tensor(sum(map(SAMPLES[1], micro_batches)))
        dist.all_reduce(total)
        loop(model, micro_batches, dist.get_world_size() / total.item())
        optimizer.step()

    return step


def told_the_count(backward):
    """As `scaled`, for a loop that is told the count and sums over the ranks."""

    def loop(model, micro_batches, factor):
        backward(model, micro_batches, SAMPLES[0], dist.get_world_size() / factor)

    return scaled(loop)


def updating(misplaced=None):
    """Chapter 03's update; all that it takes is of the gate."""
    update = names("03")["update"]

    def step(model, optimizer, micro_batches, scheduler):
        update(model, optimizer, scheduler, micro_batches, misplaced)

    return step


def clip(parameters):
    nn.utils.clip_grad_norm_(parameters, 0.5)


def falling(optimizer):
    return torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0.01, 64)


UPDATE = {"clip": clip, "make_scheduler": falling, "num_ranks": 1}


def each_reduced(model, window, loss_sum, total):
    """The faulty loop of exercise 05-window."""
    for micro_batch in window:
        (loss_sum(model, micro_batch) / total).backward()
        for param in model.parameters():
            dist.all_reduce(param.grad)


def past_wrapper(model, window, factor):
    names("12")["sync_each"](model.module, window, factor)


def training(of_tokens=False, num_ranks=2, num_micro_batches=3, **options):
    """Return a gate that is to be called."""
    loss_sum, count = TOKENS if of_tokens else SAMPLES
    make, batches = (gpt, lines()) if of_tokens else (MLP, digits())
    splits = {"ranks": (num_ranks,), "micro_batches": (num_micro_batches,)}
    return functools.partial(
        *(assert_same_training, make, SGD, loss_sum, batches, count),
        **({"steps": 2, "resume": False} | splits | options),
    )


def right() -> dict[str, Any]:
    c03, c04, c05, c12 = map(names, ("03", "04", "05", "12"))
    tokens = {"num_ranks": 1, "of_tokens": True}
    found = {
        "03 accumulate": {"train_step": accumulating(c03["accumulate"], *TOKENS), **tokens},
        "03 update": {"train_step": updating(), **UPDATE},
        "04 sum first": {"train_step": accumulating(c04["backward_true_mean"]), **tokens},
        "05 reduced once": {
            "train_step": told_the_count(c05["backward_window"]),
            "wrap": c05["DataParallelSmall"],
        },
    }
    for name in ("sync_each", "around_backward", "around_both"):
        found[f"12 {name}"] = {"train_step": scaled(c12[name]), "wrap": TorchDDP}
    return found


def wrong() -> dict[str, tuple[str, dict]]:
    """What the gate says of the likely cause, and how it is trained."""
    means = accumulating(names("04")["backward_mean_of_means"])
    return {
        "03 zero_grad inside": (
            "only the last micro-batch is in it",
            {"train_step": updating("zero_grad"), **UPDATE},
        ),
        "03 clipping inside": ("", {"train_step": updating("clipping"), **UPDATE}),
        "03 scheduler inside": (
            "scheduler.step was called 3 times in step 0, expected 1",
            {"train_step": updating("scheduler"), **UPDATE},
        ),
        "04 mean of means": (
            "each micro-batch is divided by its own count",
            {"train_step": means, "num_ranks": 1, "of_tokens": True},
        ),
        "05 each micro-batch reduced": (
            "",
            {"train_step": told_the_count(each_reduced), "wrap": names("05")["DataParallelSmall"]},
        ),
        "12 past the wrapper": (
            "this rank's own, not averaged over the ranks",
            {"train_step": scaled(past_wrapper), "wrap": TorchDDP},
        ),
    }


@pytest.fixture(scope="module")
def verdicts() -> dict[str, Any]:
    options = right() | {name: each for name, (_, each) in wrong().items()}
    return gates_together({name: training(**each) for name, each in options.items()})


@pytest.mark.parametrize("name", right())
def test_what_a_chapter_calls_right_is_green(verdicts, name):
    assert isinstance(verdicts[name], float), verdicts[name]


@pytest.mark.parametrize("name", wrong())
def test_what_a_chapter_calls_wrong_is_red_and_for_its_reason(verdicts, name):
    says, _ = wrong()[name]
    assert isinstance(verdicts[name], AssertionError)
    assert says in str(verdicts[name]).partition("likely cause: ")[2]
