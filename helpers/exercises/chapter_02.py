"""Checks of chapter 02, Where the memory goes: bytes predicted, measured, and found."""

import numbers
from collections.abc import Callable
from functools import cache, partial

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from helpers import problems
from helpers.exercises.checking import Wrong, exercise
from helpers.memory import LiveBytes, storage_bytes


@exercise("02-two-probes")
def two_probes(solution: Callable[[Callable[[int], int], int], float]) -> None:
    """solution(measure, batch_size) -> predicted peak bytes, from probes of 1 and 2 samples."""
    probes: list[int] = []

    def measure(batch_size: int) -> int:
        probes.append(batch_size)
        return _peak_of_lines((128, 128), batch_size)

    predicted = solution(measure, 8)
    if not 0 < len(probes) <= 2 or max(probes) > 2:
        raise Wrong(f"probed batches {probes}, expected one of 1 and one of 2 samples")
    _expect_bytes(predicted, measure(8), "batch 8", tolerance=0.1)


@exercise("02-finder")
def finder(solution: Callable[..., int]) -> None:
    """solution(make_model, make_optimizer, batches) -> peak bytes, from two steps at the most."""
    for lengths in ((16, 64, 32), (64, 16, 8)):
        steps: list[int] = []
        with FakeTensorMode():
            found = solution(make_small_gpt, partial(_counted_adamw, steps), _lines(lengths, 2))
        expected = _peak_of_lines(lengths * 2, 2)
        if len(steps) > 2:
            raise Wrong(f"lines of {lengths} tokens: {len(steps)} steps, expected at most 2")
        _expect_bytes(found, expected, f"lines of {lengths} tokens", tolerance=0.02)


def _counted_adamw(steps: list[int], parameters) -> torch.optim.AdamW:
    optimizer = torch.optim.AdamW(parameters)
    optimizer.register_step_post_hook(lambda *_: steps.append(1))
    return optimizer


@exercise("02-adafactor")
def adafactor(solution: Callable[[list[tuple[int, ...]]], int]) -> None:
    """solution(shapes) -> bytes of torch.optim.Adafactor's state for parameters of these shapes."""
    for shapes in ([(40, 30)], [(128,)], [(7,), (1, 9), (64, 3)], [(256, 64), (256,), (10, 256)]):
        parameters = [torch.zeros(shape, requires_grad=True) for shape in shapes]
        optimizer = torch.optim.Adafactor(parameters)
        sum(parameter.sum() for parameter in parameters).backward()
        optimizer.step()
        _expect_bytes(solution(shapes), storage_bytes(optimizer), f"shapes {shapes}")


make_small_gpt = partial(problems.make_gpt, width=128, depth=1)


def _lines(lengths: tuple[int, ...], batch_size: int) -> list[tuple]:
    return [(torch.zeros(batch_size, length, dtype=torch.int64),) * 2 for length in lengths]


@cache
def _peak_of_lines(lengths: tuple[int, ...], batch_size: int) -> int:
    """The peak of training one step on each batch, gradients freed before each forward."""
    with FakeTensorMode():  # counts the same, computes nothing
        batches = _lines(lengths, batch_size)
        with LiveBytes() as live:
            model = make_small_gpt()
            optimizer = torch.optim.AdamW(model.parameters())
            for batch in batches:
                optimizer.zero_grad()
                problems.token_loss_sum(model, batch).backward()
                optimizer.step()
    return live.peak_bytes


def _expect_bytes(found: float, expected: int, what: str, tolerance: float = 0.0) -> None:
    if not isinstance(found, numbers.Real):  # NumPy's numbers are, tensors are not
        raise Wrong(f"{what}: found {type(found).__name__}, expected a number of bytes")
    if not abs(found - expected) <= tolerance * expected:  # so that a NaN fails
        off = (found - expected) / expected
        raise Wrong(f"{what}: {found:,.0f} bytes, measured {expected:,} ({off:+.1%})")
