"""CPU time of a training step: process time of all threads, per rank."""

import gc
import statistics
import time
from collections.abc import Callable, Iterable

from helpers.process_group import process_group

from .contenders import OURS, OURS_SHARED, TORCH, WRAPS
from .rows import Bound, Row
from .training import LARGE, SMALL, Model, Training
from .turns import of_all_ranks, take_turns

MODELS = SMALL, LARGE
WARMUP = 3
DEFAULT_ROUNDS = 30
WHAT = "CPU time of a training step, all threads, per rank"


def num_ticks(rounds: int) -> int:
    """How often `measure` ticks. Local."""
    return len(MODELS) * (WARMUP + rounds)


def measure(rounds: int, tick: Callable[[], None]) -> list[Row]:
    """Return the CPU milliseconds of a step of each contender. Every rank must call this.

    All are in one process group, and a turn is some steps one after the other. The control is
    torch's class once more: how far its ratio is from 1 says what ratios are worth here.
    """
    with process_group(backend="gloo"):
        return [row for model in MODELS for row in measure_model(model, rounds, tick)]


def measure_model(
    model: Model, rounds: int, tick: Callable[[], None], names: Iterable[str] = tuple(WRAPS)
) -> list[Row]:
    """Return the rows of one model, in the open process group. Every rank must call this."""
    trainings = {name: Training(model, WRAPS[name]) for name in names}
    turns = {name: _turn(training, model) for name, training in trainings.items()}
    gc.collect()
    samples = take_turns(turns, rounds, tick, warmup=WARMUP)
    return [
        Row(model.words, name, values, "ms", BOUNDS[model.words].get(name, ()))
        for name, values in of_all_ranks(samples, statistics.mean).items()
    ]


def _turn(training: Training, model: Model) -> Callable[[], float]:
    def turn() -> float:
        start_s = time.process_time()
        for _ in range(model.steps_a_turn):
            training.step()
        return 1e3 * (time.process_time() - start_s) / model.steps_a_turn

    return turn


_SHARED = (Bound(TORCH, 0.92),)
BOUNDS = {
    SMALL.words: {OURS: (Bound(TORCH, 1.04),), OURS_SHARED: _SHARED},
    LARGE.words: {OURS: (Bound(TORCH, 1.01),), OURS_SHARED: _SHARED},
}
