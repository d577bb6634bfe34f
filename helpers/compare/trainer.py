"""A model in training: by the gate's own loop or by the user's, noted after each step."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from helpers.accumulate import GradientAccumulator, accumulate_gradients
from helpers.compare import notes as noted
from helpers.compare import returned
from helpers.compare.notes import Note
from helpers.compare.setup import Training
from helpers.process_group import Ranks


def alone(ranks: Ranks) -> Ranks:
    """Return a world of one on this rank's device. Local."""
    return dataclasses.replace(ranks, rank=0, local_rank=0, world_size=1)


class Calls(NamedTuple):
    """How often a step of training called `optimizer.step` and `scheduler.step`."""

    optimizer: int
    scheduler: int


class Trainer:
    """Model, optimizer and scheduler of one training. Every rank must construct it.

    `wrap` None is the reference: a plain model in a world of one, trained by the gate's loop on
    whole batches. `.notes` begins with the state at the start; `.calls` has one entry a step.
    """

    def __init__(
        self,
        training: Training,
        ranks: Ranks,
        wrap: Callable[[nn.Module], nn.Module] | None,
    ):
        self.training, self.ranks, self.is_reference = training, ranks, wrap is None
        self.module = training.build(ranks, 0 if wrap is None else training.offset(ranks))
        self.model = self.module if wrap is None else wrap(self.module)
        returned.check_wrapped(self.model, self.module)
        self.optimizer = training.make_optimizer(self.module.parameters())
        returned.check_optimizer(self.optimizer, self.module, self.is_reference)
        make_scheduler = training.make_scheduler
        self.scheduler = make_scheduler(self.optimizer) if make_scheduler else None
        self.notes = noted.state(None, self.module)
        self.calls: list[Calls] = []
        self._count_calls()

    def _count_calls(self) -> None:
        """Note gradients as the optimizer finds them, and count its steps and the scheduler's."""
        self._num_steps, self._num_scheduled, self._gradients = 0, 0, None
        step = self.optimizer.step

        @functools.wraps(step)
        def noting_step(closure: Any = None, **options: Any) -> Any:
            self._num_steps += 1
            self._note_gradients()
            if closure is None:
                return step(**options)
            return step(lambda: (closure(), self._note_gradients())[0], **options)

        self.optimizer.step = noting_step
        if self.scheduler is not None:
            self._count_scheduler()

    def _note_gradients(self) -> None:
        held = returned.held(self.optimizer)
        self._gradients = noted.gradients(len(self.calls), self.module, held)

    def _count_scheduler(self) -> None:
        """By a subclass of its own, since what an instance holds is in its state_dict."""
        trainer, kind = self, type(self.scheduler)

        def step(scheduler: Any, *arguments: Any, **options: Any) -> Any:
            trainer._num_scheduled += 1
            return kind.step(scheduler, *arguments, **options)

        self.scheduler.__class__ = type(kind.__name__, (kind,), {"step": step})

    def train(self, step: int, num_micro_batches: int) -> None:
        """Train on the batch of this step and note what came of it. Every rank must call this."""
        self._num_steps, self._num_scheduled, self._gradients = 0, 0, None
        is_users = self.training.train_step is not None and not self.is_reference
        length = self.training.num_parts(step, num_micro_batches)
        window = self.training.window(
            self.training.batches[step], self.ranks, length if is_users else num_micro_batches
        )
        loss = self._users_step(window, num_micro_batches) if is_users else self._step(window)
        told = None if loss is None else {"": _number(loss)}
        if self._gradients is None:
            self._note_gradients()
        self.notes += [Note(step, "loss", told), self._gradients._replace(step=step)]
        self.notes += noted.state(step, self.module)
        self.notes.append(_learning_rates(step, self.optimizer))
        self.calls.append(Calls(self._num_steps, self._num_scheduled))

    def _step(self, window: list[Any]) -> float:
        self.optimizer.zero_grad()
        loss = self._backward(window)
        if self.training.clip:
            self.training.clip(list(self.module.parameters()))
        self.optimizer.step()
        if self.scheduler:
            self.scheduler.step()
        return loss

    def _users_step(self, window: list[Any], num_micro_batches: int) -> Any:
        offered = {"scheduler": self.scheduler, "num_micro_batches": num_micro_batches}
        asked = inspect.signature(self.training.train_step).parameters
        options = {name: value for name, value in offered.items() if name in asked}
        return self.training.train_step(self.model, self.optimizer, window, **options)

    def _backward(self, window: list[Any]) -> float:
        """Leave the averaged gradients of the window in the model; return the global mean loss."""
        work = self.model, window, self.training.loss_sum, self.training.count
        if self.is_reference:
            return self._backward_alone(work)
        if hasattr(self.model, "no_sync"):
            loss = accumulate_gradients(*work)
        else:
            scale = self.ranks.world_size  # to be averaged
            loss = accumulate_gradients(
                *work, dist.group.WORLD, backward=lambda loss: (loss * scale).backward()
            )
        if hasattr(self.model, "average_gradients"):
            self.model.average_gradients()
        return loss

    def _backward_alone(self, work: tuple) -> float:
        if self.training.slices == 1:
            return accumulate_gradients(*work)
        sums = GradientAccumulator(self.module.parameters(), dtype=torch.float64)
        loss = accumulate_gradients(*work, backward=lambda loss: (loss.backward(), sums.add()))
        sums.assign()
        return loss


def _learning_rates(step: int, optimizer: torch.optim.Optimizer) -> Note:
    """A scheduler changes them after a step, so they are noted with the step that it follows."""
    rates = [group.get("lr", 0.0) for group in optimizer.param_groups]
    return Note(
        step,
        "learning rate",
        {f"[{index}]": _number(rate) for index, rate in enumerate(rates)},
    )


def _number(value: Any) -> torch.Tensor:
    """Return a float or a tensor of one number as a copy that stays as it is, float64."""
    if not isinstance(value, torch.Tensor | int | float | np.number):
        raise TypeError(f"train_step returned a {type(value).__name__}, expected a number or None")
    number = torch.as_tensor(value, dtype=torch.float64, device="cpu").detach().clone()
    if number.numel() != 1:
        raise ValueError(f"train_step returned {tuple(number.shape)}, expected one number or None")
    return number.reshape(())


def reference(training: Training, ranks: Ranks, num_slices: int | None = None) -> list[Note]:
    """Return the notes of one process on whole batches, or on slices of them. Local.

    `ranks` is a world of one.
    """
    trainer = Trainer(training, ranks, wrap=None)
    for step in range(len(training.batches)):
        trainer.train(step, num_slices or training.slices)
    return trainer.notes
