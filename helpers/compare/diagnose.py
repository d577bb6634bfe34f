"""The likely cause of a difference: what is said was tested against the numbers themselves."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from helpers.compare import not_finite
from helpers.compare.fit import Fit
from helpers.compare.notes import Note, first_difference
from helpers.compare.replay import Parts, find, replay
from helpers.compare.setup import Training, unsteady
from helpers.compare.trainer import Calls, alone
from helpers.process_group import Ranks

UNKNOWN = "no known cause fits"
#: What a few roundings to float32 leave, as a part of the number.
FLOAT32 = 2**-21


class Trial(NamedTuple):
    """One way to split the batches, as trained on this rank, beside the reference.

    `index` is the first note that differs on any rank.
    """

    training: Training
    ranks: Ranks
    num_micro_batches: int
    notes: Sequence[Note]
    expected: Sequence[Note]
    calls: Sequence[Calls]
    allowed: dict[str, float]
    index: int

    @property
    def step(self) -> int | None:
        return self.expected[self.index].step

    def differs(self, kind: str) -> bool:
        """Whether this step's notes of a kind differ on this rank."""
        here, there = (find(notes, self.step, kind) for notes in (self.notes, self.expected))
        difference, _ = first_difference([here], [there], self.allowed)
        return difference is not None


def likely_cause(trial: Trial, again: Callable[[Training], Trial | None]) -> str:
    """Return what explains this rank's numbers, or UNKNOWN. Every rank must call this.

    `again(training)` tries the same split with another training, and returns None where it then
    agrees on every rank.
    """
    if trial.step is None:
        return _at_the_start(trial) or not_finite.at_the_start(trial) or UNKNOWN
    said = _by_calls(trial)
    layers = unsteady(trial.training.build(trial.ranks))
    if layers:
        still = again(trial.training.still())
        if still is None:
            names = ", ".join(layers[:3]) + (", ..." if len(layers) > 3 else "")
            return f"{names}: in evaluation mode all agrees; samples or chance mix there"
        trial = trial if still.step is None else still
    return said or _by_parts(trial) or UNKNOWN


def _at_the_start(trial: Trial) -> str:
    """Whether each number that is not rank 0's is what the gate gave another rank."""
    kind, world_size = trial.expected[trial.index].kind, trial.ranks.world_size
    given = [_given(trial, rank, kind) for rank in range(world_size)]
    here, there = trial.notes[trial.index].tensors, trial.expected[trial.index].tensors
    apart = [name for name, x in here.items() if not _is_equal(x, there[name])]
    if apart and all(_is_from(here[name], [each[name] for each in given]) for name in apart):
        return (
            f"the {kind}s are those that the gate gave each rank: nothing copies rank 0's "
            "(if make_model is seeded alike on every rank, say same_start)"
        )
    first, second = (trial.training.build(alone(trial.ranks)).state_dict() for _ in range(2))
    changing = [name for name, x in first.items() if not _is_equal(x, second[name])]
    if changing:
        return f"make_model gives {changing[0]} other numbers each time, from the same seeds"
    return ""


def _given(trial: Trial, rank: int, kind: str) -> dict[str, Tensor]:
    ranks = dataclasses.replace(trial.ranks, rank=rank)
    module = trial.training.build(ranks, trial.training.offset(ranks))
    return dict(module.named_parameters() if kind == "parameter" else module.named_buffers())


def _is_from(found: Tensor, given: Sequence[Tensor]) -> bool:
    return bool(sum(_same(found, x) for x in given).bool().all())


def _same(a: Tensor, b: Tensor) -> Tensor:
    a, b = a.detach().cpu(), b.detach().cpu()
    return (a == b) | (a.isnan() & b.isnan())


def _is_equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(_same(a, b).all())


def _by_calls(trial: Trial) -> str:
    """What was counted in this step or one before it."""
    for step, calls in enumerate(trial.calls[: trial.step + 1]):
        expected = {"optimizer": 1, "scheduler": int(trial.training.make_scheduler is not None)}
        for name, number in expected.items():
            found = getattr(calls, name)
            if found != number:
                where = f"{name}.step was called {_times(found)} in step {step}"
                return f"{where}, expected {number} (once a window)"
    return ""


def _times(number: int) -> str:
    return {0: "not at all", 1: "once"}.get(number, f"{number} times")


def _by_parts(trial: Trial) -> str:
    there = find(trial.expected, trial.step, "gradient").tensors
    names = [name for name, x in there.items() if x is not None]
    parts = replay(
        trial.training, trial.expected, trial.step, trial.ranks, trial.num_micro_batches, names
    )
    if parts is None:
        return ""
    for said in not_finite.causes(trial, parts):
        return said
    if parts.is_random:
        why = f"a forward changes {parts.changed[0]}" if parts.changed else "chance is in it"
        return f"the loss of one micro-batch differs from call to call: {why}"
    return next((said for test in TESTS for said in test(trial, parts, names) if said), "")


def _not_sums(trial: Trial, parts: Parts, names: list[str]) -> Iterator[str]:
    """Whether loss_sum and count add up over the parts of a batch, as sums do."""
    counts, total = parts.window.counts.flatten(), parts.whole_count
    if counts.sum() != total:
        yield f"count gives {counts.sum():.15g} over the parts, {total:.15g} over the whole batch"
    bound = max(1e-9, trial.allowed["loss"])
    if _near(parts.losses.sum().item(), parts.whole_loss, bound):
        return
    if _near((parts.losses * counts).sum().item(), parts.whole_loss * total, bound):
        yield "loss_sum returns a mean, expected a sum over what count counts"
    yield "loss_sum of the parts does not add up to that of the batch: samples depend on others"


def _near(a: float, b: float, bound: float) -> bool:
    return abs(a - b) <= bound * max(abs(a), abs(b))


def _gradients(trial: Trial, parts: Parts, names: list[str]) -> Iterator[str]:
    if trial.differs("gradient"):
        yield from Fit.of(trial, parts, names).causes()


def _loss(trial: Trial, parts: Parts, names: list[str]) -> Iterator[str]:
    note = find(trial.notes, trial.step, "loss")
    if note.tensors is None or not trial.differs("loss"):
        return
    found = note.tensors[""].reshape(1).cpu()
    right = find(trial.expected, trial.step, "loss").tensors[""].item()
    if trial.training.dtype == torch.float64 and _near(found.item(), right, FLOAT32):
        yield "the loss told: right to float32, so it is not kept in float64 all the way"
    fit = Fit(parts.losses[:, None], found, parts.window, max(1e-9, trial.allowed["loss"]))
    also = "" if trial.differs("gradient") else ", while the gradients agree"
    yield from (f"the loss told: {words}{also}" for words in fit.weighed())


def _after_the_step(trial: Trial, parts: Parts, names: list[str]) -> Iterator[str]:
    if trial.differs("gradient") or not trial.differs("parameter"):
        return
    before = find(trial.notes, trial.step - 1 if trial.step else None, "parameter")
    after = find(trial.notes, trial.step, "parameter").tensors
    if before and all(_is_equal(after[name], before.tensors[name]) for name in names):
        yield "the optimizer moved no parameter on this rank"
    yield f"{UNKNOWN}; gradients agree, so it is the optimizer's step that differs on this rank"


TESTS = (_not_sums, _gradients, _loss, _after_the_step)
