"""Checks of chapter 04: every number is compared with one whole batch, in float64, at 1e-12."""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.accumulate import split_batch
from helpers.exercises.checking import Wrong, exercise, expect_close
from helpers.problems import (
    IGNORE_INDEX,
    count_tokens,
    encode,
    library_text,
    make_gpt,
    token_batch,
    token_loss_sum,
)

LENGTHS = (3, 31, 8, 17, 2, 26, 11, 5, 29, 14, 1, 20, 7, 23, 12, 32)


def _batch(lengths: tuple[int, ...] = LENGTHS) -> tuple[Tensor, Tensor]:
    """Sequences of the library's text, cut to these lengths, padded with spaces (token 0)."""
    text = encode(library_text(20_000))
    generator = torch.Generator().manual_seed(4)
    inputs, targets = token_batch(text, len(lengths), max(LENGTHS), generator)
    padding = torch.arange(max(LENGTHS)) >= torch.tensor(lengths)[:, None]
    return inputs.masked_fill(padding, 0), targets.masked_fill(padding, IGNORE_INDEX)


def _model() -> nn.Module:
    return make_gpt(seed=4, dtype=torch.float64, width=16, depth=1, context=32)


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _gradient(model: nn.Module) -> Tensor:
    if any(parameter.grad is None for parameter in _trained(model)):
        raise Wrong("a parameter has no gradient, expected one after each window")
    return torch.cat([parameter.grad.flatten() for parameter in _trained(model)])


def _whole(batch: tuple[Tensor, Tensor], model: nn.Module | None = None) -> tuple[float, Tensor]:
    """Loss and gradient of the one whole batch: the mean over all tokens that count."""
    model = model or _model()
    losses = F.cross_entropy(model(batch[0]).mT, batch[1], reduction="none")
    loss = losses.sum() / (batch[1] != IGNORE_INDEX).sum()
    loss.backward()
    return loss.item(), _gradient(model)


def _with_silent_micro_batch() -> tuple[Tensor, Tensor]:
    """Sequences 4 to 7 hold no target: a whole micro-batch for K = 4, four of them for K = 16."""
    return _batch(LENGTHS[:4] + (0,) * 4 + LENGTHS[8:])


@exercise("04-divisor")
def divisor(solution) -> None:
    """Each sum times loss_scale(counts) must give the whole batch's gradient; nothing at all, 0."""
    cases = {"": _batch(), ", one of them all-ignored": _with_silent_micro_batch()}
    for said, batch in cases.items():
        loss, expected = _whole(batch)
        for num_micro_batches in (1, 4, 16):
            name = f"{num_micro_batches} micro-batches{said}"
            logged, gradient = _scaled(solution, batch, num_micro_batches)
            expect_close(gradient, expected, f"gradient of {name}")
            expect_close(logged, loss, f"loss of {name}")
    logged, gradient = _scaled(solution, _batch((0,) * len(LENGTHS)), 4)
    expect_close(gradient, torch.zeros_like(gradient), "gradient of an all-ignored window")
    expect_close(logged, 0.0, "loss of an all-ignored window")


def _scaled(loss_scale: Callable, batch: tuple[Tensor, Tensor], num_micro_batches: int):
    """Loss and gradient of a window whose summed losses are multiplied by the solution's scale."""
    model, logged = _model(), 0.0
    window = split_batch(batch, len(batch[0]) // num_micro_batches)
    scale = loss_scale([count_tokens(micro_batch) for micro_batch in window])
    for micro_batch in window:
        loss = token_loss_sum(model, micro_batch) * scale
        loss.backward()
        logged += loss.item()
    return logged, _gradient(model)


@exercise("04-count")
def count(solution) -> None:
    """A padding token is also a character of the text; only the targets know."""
    for lengths in (LENGTHS, (32,) * 4, (1,) * 4, (0, 5)):
        batch = _batch(lengths)
        expect_close(float(solution(batch)), count_tokens(batch), "the count of tokens")


@exercise("04-late")
def late(solution) -> None:
    """Equal to the whole batch, with each micro-batch fetched after the backward before it."""
    batch = _with_silent_micro_batch()
    loss, expected = _whole(batch, _partly_frozen())
    for num_micro_batches in (1, 4, 16):
        model = _partly_frozen()
        logged = solution(model, _one_by_one(model, batch, num_micro_batches))
        name = f"{num_micro_batches} micro-batches"
        expect_close(_gradient(model), expected, f"gradient of {name}")
        expect_close(float(logged), loss, f"logged loss of {name}")
    model = _partly_frozen()
    logged = solution(model, _one_by_one(model, _batch((0,) * len(LENGTHS)), 4))
    expect_close(float(logged), 0.0, "logged loss of an all-ignored window")
    for grad in (p.grad for p in _trained(model) if p.grad is not None):  # none at all is fine
        expect_close(grad, torch.zeros_like(grad), "gradient of an all-ignored window")


def _partly_frozen() -> nn.Module:
    """The model with its position embedding frozen: a parameter whose gradient stays None."""
    model = _model()
    model.position_embedding.requires_grad_(False)
    return model


def _one_by_one(model: nn.Module, batch, num_micro_batches: int) -> Iterator[tuple]:
    """Micro-batches that are not to be fetched ahead: each must have moved the gradients first.

    One without any target moves nothing, so after it nothing is asked.
    """
    before, counted = _snapshot(model), 0
    for index, micro_batch in enumerate(split_batch(batch, len(batch[0]) // num_micro_batches)):
        now = _snapshot(model)
        if counted and torch.equal(now, before):
            raise Wrong(f"micro-batch {index} fetched before the backward of {index - 1}")
        before, counted = now, count_tokens(micro_batch)
        yield micro_batch


def _snapshot(model: nn.Module) -> Tensor:
    """A copy of all gradients, 0 where there is none yet."""
    return torch.cat([
        (torch.zeros_like(p) if p.grad is None else p.grad).detach().flatten()
        for p in _trained(model)
    ])  # fmt: skip
