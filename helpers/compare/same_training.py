"""The gate: the reference in one process, then every variant, judged one by one."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from helpers.accumulate.windows import num_samples
from helpers.compare.outcome import Outcome, Plan
from helpers.compare.setup import Training

DTYPES = (torch.float64, torch.float32)


def same_training(training: Training, plan: Plan) -> Iterator[Outcome]:
    """Yield the outcome of each variant, launched from here as they are asked for. Local.

    Raises ValueError for what cannot be judged, and RankFailed where a rank fails.
    """
    check(training, plan)
    from helpers.compare.launches import Launches  # not needed on a rank, and slow to import

    launches = Launches(training, plan)
    for index in range(len(plan.ranks)):
        yield from launches.outcomes(index)


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
    num_parts = max(plan.num_parts, training.slices)
    if smallest < num_parts:
        raise ValueError(
            f"a batch of {smallest} samples, expected at least {num_parts}: one for each "
            "micro-batch of each rank"
        )


def is_positive(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 1
