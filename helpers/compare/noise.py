"""How far rounding alone carries a training: what moves when samples change places."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from helpers.accumulate.windows import map_tensors, num_samples
from helpers.compare.notes import Note, errors
from helpers.compare.setup import Training
from helpers.compare.trainer import Trainer, reference
from helpers.process_group import Ranks

KINDS = ("loss", "gradient", "parameter", "buffer", "learning rate")
#: float64 is precise enough for one bound: what is wrong is far above it.
EXACT = 1e-12
SMALL = 1e-9  # rounding that Adam makes large, of gradients that are zero but for it
NUM_ORDERS = 3
FACTOR = 4  # ranks add in still other orders than those tried
LARGEST = 0.05  # a fault may be as small


def exact(tolerance: float = EXACT) -> dict[str, float]:
    """Return the same tolerance for every kind of note. Local."""
    return dict.fromkeys(KINDS, tolerance)


def noise_floor(training: Training, ranks: Ranks, num_micro_batches: int) -> dict[str, float]:
    """Return a tolerance by kind of note: 4 times the most that permuted samples move. Local.

    One process trains again on the same batches, their samples in three other orders, in as
    many micro-batches as are asked for: the sums are the same but for rounding. BatchNorm and
    dropout stand still for that, since what they change is no rounding. At least 16 times the
    dtype's precision. `ranks` is a world of one. Raises ValueError above 5 %, where no fault
    could be told from noise.
    """
    found = _measured(training, ranks, num_micro_batches, 16 * torch.finfo(training.dtype).eps)
    _check(found)
    return found


def rounding_in_float64(
    training: Training, ranks: Ranks, num_micro_batches: int
) -> dict[str, float]:
    """Return a tolerance by kind of note, measured as in `noise_floor`, at least 1e-12. Local.

    Where more than 1e-9 moves, it is no rounding, and 1e-12 is returned; for a loss computed in a
    narrower dtype that bound is 1000 times the dtype's precision.
    """
    found = _measured(training, ranks, num_micro_batches, EXACT)
    most = min(LARGEST, max(SMALL, 1000 * _precision(training, ranks)))
    return {kind: part if part <= most else EXACT for kind, part in found.items()}


def _precision(training: Training, ranks: Ranks) -> float:
    """Return that of the narrowest numbers which the first step keeps for its backward.

    They are narrower than the training's under autocast, or a cast by hand.
    """
    kept = {training.dtype}

    def note(tensor: Tensor) -> Tensor:
        kept.add(tensor.dtype)
        return tensor

    trainer = Trainer(training, ranks, wrap=None)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        trainer.train(0, training.slices)
    return max(torch.finfo(dtype).eps for dtype in kept if dtype.is_floating_point)


def _measured(
    training: Training, ranks: Ranks, num_micro_batches: int, floor: float
) -> dict[str, float]:
    still = dataclasses.replace(training.still(), train_step=None)
    expected = reference(still, ranks)
    found = exact(floor)
    for seed in range(NUM_ORDERS):
        batches = [_permuted(batch, seed) for batch in training.batches]
        permuted = dataclasses.replace(still, batches=batches, slices=1)
        moved = reference(permuted, ranks, num_micro_batches if seed else 1)
        for kind, error in _largest(moved, expected).items():
            found[kind] = max(found[kind], FACTOR * error)
    return found


def _permuted(batch: Any, seed: int) -> Any:
    order = torch.randperm(num_samples(batch), generator=torch.Generator().manual_seed(seed))
    return map_tensors(batch, lambda tensor: tensor[order.to(tensor.device)])


def _largest(found: Sequence[Note], expected: Sequence[Note]) -> dict[str, float]:
    largest: dict[str, float] = {}
    for here, there in zip(found, expected, strict=True):
        worst = max(errors(here, there).values(), default=0.0)
        largest[here.kind] = max(largest.get(here.kind, 0.0), worst)
    return largest


def _check(found: Mapping[str, float]) -> None:
    kind = max(found, key=found.get)
    if not found[kind] <= LARGEST:
        raise ValueError(
            f"noise: the {kind} of one process moves by {found[kind] / FACTOR:.1e} when samples "
            f"change places, expected at most {LARGEST / FACTOR:.1e}: something else than "
            "rounding moves it (chance, or samples that depend on one another)"
        )
