"""The parts of one batch, each computed alone in one process: what hypotheses weigh."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from helpers.compare.hypotheses import Window
from helpers.compare.notes import Note, state, whole
from helpers.compare.setup import Training
from helpers.compare.trainer import alone
from helpers.process_group import Ranks

MAX_BYTES = 2e9  # of all parts' gradients on a rank


class Parts(NamedTuple):
    """Sums of losses and gradients by part, [W x K] and [W x K, N], float64, and their counts."""

    losses: Tensor
    gradients: Tensor
    window: Window
    whole_loss: float
    whole_count: float
    is_random: bool
    changed: tuple[str, ...]  # buffers that a forward changes


def find(notes: Sequence[Note], step: int | None, kind: str) -> Note | None:
    """Return the note of this step and kind, or None. Local."""
    return next((note for note in notes if (note.step, note.kind) == (step, kind)), None)


def vector(note: Note, names: Sequence[str], like: Note) -> Tensor:
    """Return the tensors of these names end to end, float64 [N]; zeros where one is None. Local.

    `like` has the shape of each that is None; raises KeyError for a name that neither has.
    """
    parts = []
    for name in names:
        here = note.tensors[name]
        there = torch.zeros_like(like.tensors[name]) if here is None else here
        parts.append(there.detach().cpu().double().flatten())
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)


def model_before(training: Training, notes: Sequence[Note], step: int, ranks: Ranks) -> nn.Module:
    """Return a plain model with the numbers that it had before this step. Local."""
    module = training.build(alone(ranks))
    before = step - 1 if step else None
    for kind, named in (
        ("parameter", module.named_parameters()),
        ("buffer", module.named_buffers()),
    ):
        note = find(notes, before, kind)
        with torch.no_grad():
            for name, tensor in named:
                tensor.copy_(note.tensors[name])
    return module


def replay(
    training: Training,
    notes: Sequence[Note],
    step: int,
    ranks: Ranks,
    num_micro_batches: int,
    names: Sequence[str],
) -> Parts | None:
    """Return the parts of all ranks' windows, from the numbers in `notes` before this step.

    Local, but for a loss that communicates: so every rank calls it. None where they are too large.
    """
    module = model_before(training, notes, step, ranks)
    length = training.num_parts(step, num_micro_batches)
    windows = [
        training.window(training.batches[step], _at(ranks, rank), length)
        for rank in range(ranks.world_size)
    ]
    before = dict(state(None, module)[1].tensors)
    num_numbers = sum(parameter.numel() for parameter in module.parameters())
    if num_numbers * ranks.world_size * length * 8 > MAX_BYTES:
        return None
    counts = [[float(training.count(part)) for part in window] for window in windows]
    found = [_one(training, module, part, names) for window in windows for part in window]
    again, _ = _one(training, module, windows[0][0], names)
    (batch,) = training.window(training.batches[step], alone(ranks), 1)
    whole_loss, _ = _one(training, module, batch, names)
    return Parts(
        torch.tensor([loss for loss, _ in found], dtype=torch.float64),
        torch.stack([gradient for _, gradient in found]),
        Window(torch.tensor(counts, dtype=torch.float64), ranks.rank, num_micro_batches),
        whole_loss,
        float(training.count(batch)),
        not _is_same(again, found[0][0]),
        _changed(module, before),
    )


def _changed(module: nn.Module, before: Mapping[str, Tensor]) -> tuple[str, ...]:
    return tuple(name for name, x in module.named_buffers() if not _equal(whole(x), before[name]))


def _equal(a: Tensor, b: Tensor) -> bool:
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


def _is_same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


def _at(ranks: Ranks, rank: int) -> Ranks:
    return Ranks(rank, rank, ranks.world_size, ranks.device, ranks.backend)


def _one(
    training: Training, module: nn.Module, batch: Any, names: Sequence[str]
) -> tuple[float, Tensor]:
    """Return the loss summed over one part, and its gradient."""
    module.zero_grad()
    loss = training.loss_sum(module, batch)
    loss.backward()
    parameters = dict(module.named_parameters())
    parts = [
        torch.zeros_like(parameters[name])
        if parameters[name].grad is None
        else whole(parameters[name].grad)
        for name in names
    ]
    return loss.item(), torch.cat([part.cpu().double().flatten() for part in parts])
