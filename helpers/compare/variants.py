"""The ways to split a training over ranks and in time, tried on every rank."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch.distributed as dist

from helpers.compare import notes as noted
from helpers.compare import resume
from helpers.compare.diagnose import Trial, likely_cause
from helpers.compare.notes import Difference, Note, first_difference
from helpers.compare.setup import Training
from helpers.compare.trainer import Trainer, alone, reference
from helpers.process_group import Ranks, process_group

TIMEOUT_S = 30.0
NOT_ALL_CAME_BACK = (
    "the same split agrees without the stop: something that it needs is not saved, or not loaded "
    "(under dropout that is the state of the random numbers too)"
)


class Variant(NamedTuple):
    """W ranks x K micro-batches; `resumed_from` is the number of ranks that a checkpoint is of."""

    num_ranks: int
    num_micro_batches: int
    resumed_from: int | None = None

    def __str__(self) -> str:
        split = f"{plural(self.num_micro_batches, 'micro-batch')}"
        here = plural(self.num_ranks, "rank")
        if self.resumed_from is None:
            return f"{here} x {split}"
        if self.resumed_from == self.num_ranks:
            return f"{here} x {split}, stopped and resumed"
        return f"{plural(self.resumed_from, 'rank')}, resumed on {here} x {split}"


def plural(number: int, noun: str) -> str:
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}{'es' if noun.endswith('ch') else 's'}"


class Found(NamedTuple):
    """What one rank has found of a variant; is_tried False where there was no checkpoint."""

    difference: Difference | None
    error: float
    cause: str = ""
    is_tried: bool = True


class Judged(NamedTuple):
    """The reference, on every rank: its notes and what may differ, by kind."""

    expected: list[Note]
    allowed: dict[str, float]


def middle(training: Training) -> int:
    """Return how many steps come before the checkpoint; 0 where there is none to be had."""
    return len(training.batches) // 2


def against(
    training: Training,
    judged: Judged,
    variants: Sequence[Variant],
    checkpoints: Mapping[int, bytes | None] | None,
) -> tuple[list[Found], bytes | None]:
    """Return what this rank finds of each variant, and a checkpoint of these ranks, if any.

    Every rank must call this, outside a process group. `checkpoints` are by number of ranks; None
    where none is to be saved.
    """
    with process_group(timeout_s=TIMEOUT_S) as ranks:
        saves, checkpoints = checkpoints is not None, checkpoints or {}
        found, own = [], checkpoints.get(ranks.world_size)
        for variant in variants:
            # Where the same split without a stop is wrong, a stop tells nothing more.
            is_own = variant.resumed_from == ranks.world_size
            start = own and (own if is_own else checkpoints.get(variant.resumed_from))
            attempt = Attempt(training, judged, ranks, variant, start, saves)
            found.append(attempt.judge())
            if variant.resumed_from is None:
                own = attempt.saved
    return found, own if ranks.rank == 0 else None


class Attempt:
    """One variant on this rank. `saved` is its checkpoint, if all ranks agree with one process.

    Every rank must construct it, and call `judge`.
    """

    def __init__(
        self,
        training: Training,
        judged: Judged,
        ranks: Ranks,
        variant: Variant,
        checkpoint: bytes | None,
        saves: bool,
    ):
        self.training, self.judged, self.ranks = training, judged, ranks
        self.variant, self.checkpoint = variant, checkpoint
        self.saves = saves and variant.resumed_from is None
        self.saved: bytes | None = None

    def judge(self) -> Found:
        if self.variant.resumed_from is not None and self.checkpoint is None:
            return Found(None, 0.0, is_tried=False)
        trainer, lost = self._train(self.training)
        expected = self._expected(self.judged.expected)
        difference, error = first_difference(trainer.notes, expected, self.judged.allowed)
        index = self._earliest(difference)
        if index is None:
            return Found(None, error)
        if self.variant.resumed_from is not None:
            return Found(difference, error, lost or NOT_ALL_CAME_BACK)
        trial = self._trial(self.training, trainer, expected, index)
        cause = likely_cause(trial, self._again)
        self.saved = None  # after it: what is tried again is saved too
        return Found(difference, error, cause)

    def _train(self, training: Training) -> tuple[Trainer, str]:
        wrap, lost = training.wrap, ""
        if wrap is None:
            from helpers.data_parallel import DataParallelNaive as wrap  # not on import: a cycle

        is_resumed, start = self.variant.resumed_from is not None, 0
        trainer = Trainer(training, self.ranks, wrap)
        if is_resumed:
            start = middle(training)
            lost = resume.load(trainer, self.checkpoint)
            trainer.notes = noted.state(None, trainer.module)
        for step in range(start, len(training.batches)):
            if 0 < step == middle(training) and self.saves:
                self.saved = resume.save(trainer)
            trainer.train(step, self.variant.num_micro_batches)
        return trainer, lost

    def _expected(self, notes: list[Note]) -> list[Note]:
        """The part of the reference that this variant trains; a resumed one starts late."""
        if self.variant.resumed_from is None:
            return notes
        start = middle(self.training)
        before = [note._replace(step=None) for note in notes if note.step == start - 1]
        states = [note for note in before if note.kind in ("parameter", "buffer")]
        return states + [note for note in notes if note.step is not None and note.step >= start]

    def _earliest(self, difference: Difference | None) -> int | None:
        """Return the first index that differs on any rank. Every rank must call this."""
        indices = [None] * self.ranks.world_size
        dist.all_gather_object(indices, difference.index if difference else None)
        return min((index for index in indices if index is not None), default=None)

    def _trial(
        self, training: Training, trainer: Trainer, expected: list[Note], index: int
    ) -> Trial:
        return Trial(
            training,
            self.ranks,
            self.variant.num_micro_batches,
            trainer.notes,
            expected,
            trainer.calls,
            self.judged.allowed,
            index,
        )

    def _again(self, training: Training) -> Trial | None:
        trainer, _ = self._train(training)
        expected = reference(training, alone(self.ranks))
        difference, _ = first_difference(trainer.notes, expected, self.judged.allowed)
        index = self._earliest(difference)
        return None if index is None else self._trial(training, trainer, expected, index)
