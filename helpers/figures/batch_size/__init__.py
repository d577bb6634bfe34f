"""Figures of the chapter "Batch size and learning rate": noise of gradients, and trainings."""

from helpers.figures.batch_size.noise import few_windows, variance
from helpers.figures.batch_size.trainings import (
    curves,
    steps_to_target,
    sweep,
    warm_up,
)

__all__ = [
    "curves",
    "few_windows",
    "steps_to_target",
    "sweep",
    "variance",
    "warm_up",
]
