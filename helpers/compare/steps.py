"""Some steps of training, noted number by number, and the first place where two notes part."""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from helpers.accumulate import accumulate_gradients
from helpers.accumulate.windows import cut, map_tensors, num_samples
from helpers.compare.errors import squared_error
from helpers.process_group import Ranks


@dataclass(frozen=True)
class Training:
    """What is trained, the same for every way to split a batch."""

    make_model: Callable[[], nn.Module]
    make_optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    loss_sum: Callable[[nn.Module, Any], Tensor]
    batches: Sequence[Any]
    count: Callable[[Any], int]
    dtype: torch.dtype

    def build(self, ranks: Ranks) -> nn.Module:
        """Return the model in this dtype; on every rank but the first with other numbers. Local.

        Else replicas would be equal without a broadcast, and one that is missing would not show.
        """
        torch.manual_seed(0)
        module = self.make_model()
        _check_real(module)
        module.to(ranks.device, self.dtype)
        for tensor in (*module.parameters(), *module.buffers()) if ranks.rank else ():
            tensor.data = ~tensor if tensor.dtype == torch.bool else tensor.detach() + ranks.rank
        torch.manual_seed(ranks.rank)
        return module

    def window(self, batch: Any, ranks: Ranks, num_micro_batches: int) -> list[Any]:
        """Return this rank's part of the batch in micro-batches, on its device. Local.

        Parts are contiguous, and unequal where the batch does not divide.
        """
        edges = _edges(0, num_samples(batch), ranks.world_size)
        edges = _edges(edges[ranks.rank], edges[ranks.rank + 1], num_micro_batches)
        parts = [cut(batch, slice(*pair)) for pair in itertools.pairwise(edges)]
        return [map_tensors(part, lambda x: self._placed(x, ranks.device)) for part in parts]

    def _placed(self, tensor: Tensor, device: torch.device) -> Tensor:
        return tensor.to(device, self.dtype if tensor.is_floating_point() else tensor.dtype)


def _check_real(module: nn.Module) -> None:
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.is_complex():
            raise ValueError(
                f"{name}: found {tensor.dtype}, expected real numbers: the cast to the gate's "
                "dtype drops imaginary parts (see torch.view_as_real)"
            )


def _edges(start: int, stop: int, num_parts: int) -> list[int]:
    return [start + (stop - start) * part // num_parts for part in range(num_parts + 1)]


class Note(NamedTuple):
    """All numbers of one kind at one moment, on the CPU; `step` is None before the first.

    The notes of the reference travel to every rank, also to ranks that use no GPU.
    """

    step: int | None
    kind: str
    tensors: dict[str, Tensor | None]


def train(
    training: Training,
    ranks: Ranks,
    num_micro_batches: int,
    wrap: Callable[[nn.Module], nn.Module] | None,
) -> list[Note]:
    """Train a step on each batch and return the notes. Every rank must call this.

    wrap None is a plain model, for a world of one.
    """
    module = training.build(ranks)
    model = module if wrap is None else wrap(module)
    optimizer = training.make_optimizer(module.parameters())
    notes = _state(None, module)
    for step, batch in enumerate(training.batches):
        optimizer.zero_grad()
        window = training.window(batch, ranks, num_micro_batches)
        loss = _backward(model, window, training, ranks)
        notes.append(Note(step, "loss", {"": torch.tensor(loss, dtype=torch.float64)}))
        grads = {name: _noted(param.grad) for name, param in module.named_parameters()}
        notes.append(Note(step, "gradient", grads))
        optimizer.step()
        notes += _state(step, module)
    return notes


def _backward(model: nn.Module, window: list[Any], training: Training, ranks: Ranks) -> float:
    """Leave the averaged gradients of the window in the model; return the global mean loss."""
    work = model, window, training.loss_sum, training.count
    if hasattr(model, "no_sync"):
        loss = accumulate_gradients(*work)
    else:
        loss = accumulate_gradients(
            *work,
            dist.group.WORLD,
            backward=lambda loss: (loss * ranks.world_size).backward(),  # to be averaged
        )
    if hasattr(model, "average_gradients"):
        model.average_gradients()
    return loss


def _state(step: int | None, module: nn.Module) -> list[Note]:
    kinds = {"parameter": module.named_parameters(), "buffer": module.named_buffers()}
    return [
        Note(step, kind, {name: _noted(x) for name, x in named}) for kind, named in kinds.items()
    ]


def _noted(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach().to("cpu", copy=True)


class Difference(NamedTuple):
    """Where a note parts from the reference: at which of all notes, of which step, and how."""

    index: int
    step: int | None
    message: str


def first_difference(
    found: Sequence[Note], expected: Sequence[Note], tolerance: float
) -> tuple[Difference | None, float]:
    """Return the first difference above tolerance, and the largest error of all notes. Local."""
    first, largest = None, 0.0
    for index, (here, there) in enumerate(zip(found, expected, strict=True)):
        message, error = _difference(here, there, tolerance)
        largest = max(largest, error)
        if message and first is None:
            first = Difference(index, here.step, message)
    return first, largest


def _difference(here: Note, there: Note, tolerance: float) -> tuple[str | None, float]:
    """Say which tensors differ by more than tolerance times the norm of all of that kind."""
    if here.tensors.keys() != there.tensors.keys():
        odd = sorted(here.tensors.keys() ^ there.tensors.keys())
        return f"only one has the {here.kind} {', '.join(odd)}", math.inf
    squares = {name: _squares(x, there.tensors[name]) for name, x in here.tensors.items()}
    size = math.sqrt(math.fsum(square for _, square in squares.values()))
    errors = {name: _ratio(math.sqrt(off), size) for name, (off, _) in squares.items()}
    wrong = [name for name, error in errors.items() if not error <= tolerance]
    if not wrong:
        return None, max(errors.values(), default=0.0)
    text = _told(here, there, wrong[0], squares[wrong[0]])
    many = f" ({len(wrong)} of {len(errors)} {here.kind}s differ)" if len(errors) > 1 else ""
    return f"{text}, allowed {tolerance:.0e}{many}", math.inf


def _told(here: Note, there: Note, name: str, squares: tuple[float, float]) -> str:
    what = f"{here.kind} {name}".rstrip()
    for which, note in (("here", here), ("in one process", there)):
        if note.tensors[name] is None:
            return f"the {what} is None {which} only"
    return f"the {what} is {_ratio(*map(math.sqrt, squares)):.1e} off"


def _squares(found: Tensor | None, expected: Tensor | None) -> tuple[float, float]:
    """Return |found - expected|^2 and |expected|^2, the latter without what is not finite.

    NaN equals NaN, as between replicas, and an infinity itself.
    """
    if found is None or expected is None:
        return (0.0 if found is expected else math.inf), 0.0
    found, expected = found.cpu(), expected.cpu()
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return math.inf, 0.0
    finite = torch.where(expected.isfinite(), expected, 0)
    is_same = (found == expected) | (found.isnan() & expected.isnan())
    off, _ = squared_error(
        "", torch.where(is_same, finite, found), expected.where(~is_same, finite)
    )
    return off, squared_error("", finite, finite)[1]


def _ratio(off: float, size: float) -> float:
    return off / size if size else (math.inf if off else 0.0)
