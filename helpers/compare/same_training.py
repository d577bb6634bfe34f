"""Launches of the gate: the reference in one process, then every variant, judged one by one."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from helpers.accumulate.windows import num_samples
from helpers.compare.noise import EXACT, exact, noise_floor
from helpers.compare.notes import Difference, Note
from helpers.compare.setup import Training
from helpers.compare.trainer import reference
from helpers.compare.variants import TIMEOUT_S, Found, Judged, Variant, against
from helpers.process_group import process_group

DTYPES = (torch.float64, torch.float32)


class Outcome(NamedTuple):
    """What came of a variant: `is_same` is None where it was not tried.

    `error` is the largest part of a norm that was found, `allowed` what may be, by kind of number;
    `difference`, its rank and its cause are empty where all is the same.
    """

    variant: Variant
    is_same: bool | None
    error: float
    allowed: Mapping[str, float]
    rank: int | None = None
    difference: Difference | None = None
    cause: str = ""

    @property
    def when(self) -> str:
        if self.difference.step is not None:
            return f"step {self.difference.step}"
        return "after loading" if self.variant.resumed_from else "before the first step"

    @property
    def told(self) -> str:
        """One sentence: which variant, when, on which rank, what and by how much."""
        return (
            f"{self.variant} differ from one process on the whole batch: {self.when}, "
            f"rank {self.rank}: {self.difference.message}"
        )

    def __str__(self) -> str:
        return f"{self.told}\nlikely cause: {self.cause}"


class Plan(NamedTuple):
    """Which variants are tried, against what tolerance (None: the dtype's own), how long."""

    micro_batches: Sequence[int]
    ranks: Sequence[int]
    resume: bool = True
    tolerance: float | None = None
    timeout_s: float = 60.0

    def variants(self, index: int, steps: int) -> list[Variant]:
        """Return those of the launch with this index: splits, a stop, another number of ranks."""
        num_ranks, most = self.ranks[index], self.micro_batches[-1]
        found = [Variant(num_ranks, number) for number in self.micro_batches]
        if self.resume and steps > 1:
            earlier = [self.ranks[index - 1]] if index else []
            found += [Variant(num_ranks, most, each) for each in (num_ranks, *earlier)]
        return found


def same_training(training: Training, plan: Plan) -> Iterator[Outcome]:
    """Yield the outcome of each variant, launched from here as they are asked for. Local.

    Raises ValueError for what cannot be judged, and RankFailed where a rank fails.
    """
    check(training, plan)
    from helpers.launch import run_function  # not needed on a rank, and slow to import

    # A world of its own: code that asks for its rank must not act as several ranks do.
    (judged,) = run_function(_alone, training, plan, nproc_per_node=1, timeout_s=plan.timeout_s)
    _check_losses(judged.expected)
    checkpoint = None
    for index, num_ranks in enumerate(plan.ranks):
        variants = plan.variants(index, len(training.batches))
        results = run_function(
            against,
            *(training, judged, variants, checkpoint),
            nproc_per_node=num_ranks,
            timeout_s=plan.timeout_s,
        )
        checkpoint = results[0][1]
        by_variant = zip(*(found for found, _ in results), strict=True)
        for variant, by_rank in zip(variants, by_variant, strict=True):
            yield _outcome(variant, by_rank, judged.allowed)


def _alone(training: Training, plan: Plan) -> Judged:
    with process_group(timeout_s=TIMEOUT_S) as ranks:
        expected = reference(training, ranks)
        if plan.tolerance is not None:
            return Judged(expected, exact(plan.tolerance))
        if training.dtype == torch.float64:
            return Judged(expected, exact(EXACT))
        most = plan.micro_batches[-1] * max(plan.ranks)
        return Judged(expected, noise_floor(training, ranks, most))


def _outcome(variant: Variant, by_rank: Sequence[Found], allowed: Mapping[str, float]) -> Outcome:
    """Judge by time, then by rank."""
    error = max(found.error for found in by_rank)
    differing = [(found, rank) for rank, found in enumerate(by_rank) if found.difference]
    if not differing:
        return Outcome(variant, all(found.is_tried for found in by_rank) or None, error, allowed)
    found, rank = min(differing, key=lambda each: (each[0].difference.index, each[1]))
    cause = found.cause + _apart(found.difference, by_rank)
    return Outcome(variant, False, error, allowed, rank, found.difference, cause)


def _apart(first: Difference, by_rank: Sequence[Found]) -> str:
    """Say which ranks still agree where others do not."""
    places = [found.difference.index if found.difference else None for found in by_rank]
    agree = [rank for rank, index in enumerate(places) if index is None or index > first.index]
    if not agree or first.kind not in ("parameter", "buffer"):
        return ""
    who = f"ranks {', '.join(map(str, agree))} agree" if agree[1:] else f"rank {agree[0]} agrees"
    return f"; {who} here: the replicas are apart"


def check(training: Training, plan: Plan) -> None:
    """Raise ValueError, with found and expected, for what cannot be tried. Local."""
    for name, found in {"micro_batches": plan.micro_batches, "ranks": plan.ranks}.items():
        if not (isinstance(found, Sequence) and found and all(map(is_positive, found))):
            raise ValueError(
                f"{name}: found {found!r}, expected whole numbers, 1 or more, at least one of them"
            )
    if training.dtype not in DTYPES:
        known = " or ".join(str(dtype) for dtype in DTYPES)
        raise ValueError(
            f"found {training.dtype}, expected {known}: less precise numbers hide what is wrong"
        )
    if (training.save_state is None) != (training.load_state is None):
        raise ValueError("found one of save_state and load_state, expected both or neither")
    smallest = min(num_samples(batch) for batch in training.batches)
    num_parts = max(max(plan.micro_batches) * max(plan.ranks), training.slices)
    if smallest < num_parts:
        raise ValueError(
            f"a batch of {smallest} samples, expected at least {num_parts}: one for each "
            "micro-batch of each rank"
        )


def is_positive(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 1


def _check_losses(expected: Sequence[Note]) -> None:
    """Once a loss is NaN all numbers are, in whatever way they are split."""
    for note in expected:
        loss = note.tensors[""].item() if note.kind == "loss" else 0.0
        if not math.isfinite(loss):
            raise ValueError(
                f"step {note.step}: the loss in one process is {loss}, expected a finite one"
            )
