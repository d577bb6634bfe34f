"""Known ways to weigh the parts of a batch wrongly, each as the weights that it gives them.

The mean over a batch is a sum over its parts, each divided by the count of all. Wrong divisors
and missing sums are other weights of the same parts, so that one product tells what each gives.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor


class Window(NamedTuple):
    """Counts of the parts of a batch, [W, K], for one rank; `num_asked` micro-batches asked for.

    `num_asked` is more than K where the window is short.
    """

    counts: Tensor
    rank: int
    num_asked: int

    @property
    def truth(self) -> Tensor:
        return torch.full_like(self.counts, 1 / self.counts.sum().item())


class Hypothesis(NamedTuple):
    """What is said of the numbers, the weights of the parts, and how many faults it takes."""

    words: str
    weights: Tensor
    num_faults: int


def hypotheses(window: Window) -> Iterator[Hypothesis]:
    """Yield every combination of divisor, part that is left, and factor, but the right one."""
    for base_words, base in _bases(window):
        for scope_words, scope in _scopes(window):
            for factor_words, factor in _factors(window):
                parts = [words for words in (scope_words, base_words, factor_words) if words]
                weights = base * scope * factor
                if parts and not torch.allclose(weights, window.truth, rtol=1e-9, atol=0):
                    yield Hypothesis("; ".join(parts), weights, len(parts))


def _bases(window: Window) -> Iterator[tuple[str, Tensor]]:
    counts = window.counts
    num_ranks, num_micro = counts.shape
    yield "", window.truth
    if num_micro > 1 and len(set(counts.flatten().tolist())) > 1:
        own = _listed(counts[window.rank])
        words = f"each micro-batch is divided by its own count ({own} on this rank), then averaged"
        yield words, _inverse(counts) / (num_ranks * num_micro)
    by_rank = counts.sum(1, keepdim=True)
    if num_ranks > 1 and len(set(by_rank.flatten().tolist())) > 1:
        words = f"each rank divides by its own count ({_listed(by_rank.flatten())}), then averaged"
        yield words, (_inverse(by_rank) / num_ranks).expand_as(counts)


def _inverse(counts: Tensor) -> Tensor:
    """Return 1 / counts, and 0 where nothing is counted: there is no gradient there."""
    return torch.where(counts > 0, 1 / counts, 0.0)


def _scopes(window: Window) -> Iterator[tuple[str, Tensor]]:
    num_ranks, num_micro = window.counts.shape
    everything = torch.ones_like(window.counts)
    own, last = torch.zeros_like(everything), torch.zeros_like(everything)
    share, first = torch.zeros_like(everything), torch.zeros_like(everything)
    own[window.rank], share[window.rank], last[:, -1], first[:, 0] = num_ranks, 1, 1, 1
    yield "", everything
    if num_ranks > 1:
        yield "this rank's own, not averaged over the ranks", own
        yield "this rank's share, not summed over the ranks", share
    if num_micro > 1:
        yield "only the last micro-batch is in it (as with zero_grad before each)", last
        yield "only the first micro-batch is in it", first
    if num_ranks > 1 and num_micro > 1:
        words = "only the last micro-batch is averaged over the ranks"
        yield words, torch.where(last == 1, last, own)
        yield (
            "only the first micro-batch is averaged over the ranks",
            torch.where(first == 1, first, own),
        )
        yield "this rank's own, of the last micro-batch alone", last * own


def _factors(window: Window) -> Iterator[tuple[str, float]]:
    """Yield each factor once, with all that it may stand for."""
    (num_ranks, num_micro), asked = window.counts.shape, window.num_asked
    known = {"the number of ranks": num_ranks, "the number of micro-batches": num_micro}
    if num_ranks > 1 and num_micro > 1:
        known["ranks x micro-batches"] = num_ranks * num_micro
    names: dict[int, list[str]] = {}
    for name, number in known.items():
        if number > 1:
            names.setdefault(number, []).append(name)
    yield "", 1.0
    for number, meant in names.items():
        yield f"{number} times too large, {_or(meant)}", float(number)
        yield f"{number} times too small, {_or(meant)}: divided once too often", 1 / number
    if asked != num_micro:
        part = f"a short window of {num_micro} is divided by {asked}"
        yield f"{num_micro / asked:.3g} times the right one, {part}", num_micro / asked


def _or(words: list[str]) -> str:
    return " or ".join(words)


def _listed(counts: Tensor) -> str:
    numbers = [f"{count:.15g}" for count in counts.tolist()]
    return ", ".join(numbers[:4]) + (", ..." if len(numbers) > 4 else "")
