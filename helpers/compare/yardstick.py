"""What a variant is held against, made in a world of one: the reference, and rounding measured."""

import torch

from helpers.compare.noise import EXACT, exact, noise_floor, rounding_in_float64
from helpers.compare.outcome import Plan
from helpers.compare.returned import check_counts, explain
from helpers.compare.setup import Training
from helpers.compare.trainer import reference
from helpers.compare.variants import TIMEOUT_S, Judged
from helpers.process_group import process_group


def judged_alone(training: Training, plan: Plan) -> Judged:
    """Return the reference's notes, and what may differ. Call on the one rank of a launch.

    Raises TypeError or ValueError, naming the function, for what cannot be trained with.
    """
    with process_group(timeout_s=TIMEOUT_S) as ranks:
        check_counts(training)
        try:
            expected = reference(training, ranks)
        except Exception:
            explain(training, ranks)
            raise
        if plan.tolerance is not None:
            return Judged(expected, exact(plan.tolerance))
        if training.dtype == torch.float64:
            return Judged(expected, exact(EXACT))
        return Judged(expected, noise_floor(training, ranks, plan.num_parts))


def rounding_alone(training: Training, num_parts: int) -> dict[str, float]:
    """Return what rounding may move in float64, by kind. Call on the one rank of a launch."""
    with process_group(timeout_s=TIMEOUT_S) as ranks:
        return rounding_in_float64(training, ranks, num_parts)
