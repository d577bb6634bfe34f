"""Numbers noted while a model trains, and the first place where two notes part."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from helpers.compare.errors import squared_error


class Note(NamedTuple):
    """All numbers of one kind at one moment; `step` is None before the first.

    `tensors` is None where the training does not tell: then nothing is compared.
    """

    step: int | None
    kind: str
    tensors: dict[str, Tensor | None] | None


def whole(tensor: Tensor) -> Tensor:
    """Return a dense copy on the CPU, of a DTensor all shards: every rank must call this then."""
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    if hasattr(tensor, "full_tensor"):
        tensor = tensor.full_tensor()  # in a world of one no copy
    return tensor.to("cpu", copy=True)


def state(step: int | None, module: nn.Module) -> list[Note]:
    """Return notes of parameters and buffers. Every rank must call this."""
    kinds = {"parameter": module.named_parameters(), "buffer": module.named_buffers()}
    return [
        Note(step, kind, {name: whole(x) for name, x in named}) for kind, named in kinds.items()
    ]


def gradients(step: int, module: nn.Module, held: set[int]) -> Note:
    """Return a note of the gradients of parameters with these ids, of all if none has one of them.

    Every rank must call this. What no optimizer moves may be left to pile up.
    """
    named = dict(module.named_parameters())
    is_any = any(id(parameter) in held for parameter in named.values())
    grads = {
        name: parameter.grad if id(parameter) in held or not is_any else None
        for name, parameter in named.items()
    }
    return Note(
        step, "gradient", {name: None if x is None else whole(x) for name, x in grads.items()}
    )


class Difference(NamedTuple):
    """Where notes part from the reference: at which of all notes, which tensors, and how."""

    index: int
    step: int | None
    kind: str
    names: tuple[str, ...]
    message: str


def first_difference(
    found: Sequence[Note], expected: Sequence[Note], allowed: Mapping[str, float]
) -> tuple[Difference | None, float]:
    """Return the first difference above what is allowed by kind, and the largest error. Local."""
    first, largest = None, 0.0
    for index, (here, there) in enumerate(zip(found, expected, strict=True)):
        if here.tensors is None:
            continue
        message, error, names = _difference(here, there, allowed[here.kind])
        largest = max(largest, error)
        if message and first is None:
            first = Difference(index, here.step, here.kind, names, message)
    return first, largest


def errors(here: Note, there: Note) -> dict[str, float]:
    """Return each tensor's difference, as a part of the norm of all of its kind. Local."""
    squares = {name: _squares(x, there.tensors[name]) for name, x in here.tensors.items()}
    size = math.sqrt(math.fsum(square for _, square in squares.values()))
    return {name: _ratio(math.sqrt(off), size) for name, (off, _) in squares.items()}


def _difference(
    here: Note, there: Note, tolerance: float
) -> tuple[str | None, float, tuple[str, ...]]:
    """Say which tensors differ by more than tolerance times the norm of all of that kind."""
    if here.tensors.keys() != there.tensors.keys():
        odd = sorted(here.tensors.keys() ^ there.tensors.keys())
        return f"only one has the {here.kind} {', '.join(odd)}", math.inf, tuple(odd)
    found = errors(here, there)
    wrong = [name for name, error in found.items() if not error <= tolerance]
    if not wrong:
        return None, max(found.values(), default=0.0), ()
    text = _told(here, there, wrong[0])
    many = f" ({len(wrong)} of {len(found)} {here.kind}s differ)" if len(found) > 1 else ""
    return f"{text}, allowed {tolerance:.0e}{many}", max(found.values()), tuple(wrong)


def _told(here: Note, there: Note, name: str) -> str:
    what = f"{here.kind} {name}".rstrip()
    for which, note in (("here", here), ("in one process", there)):
        if note.tensors[name] is None:
            return f"the {what} is None {which} only"
    found, expected = here.tensors[name], there.tensors[name]
    off, size = map(math.sqrt, _squares(found, expected))
    if math.isfinite(off):
        return f"the {what} is {_ratio(off, size):.1e} off"
    if found.shape != expected.shape or found.dtype != expected.dtype:
        like = [f"{tuple(x.shape)} {x.dtype}" for x in (found, expected)]
        return f"the {what} is {like[0]}, in one process {like[1]}"
    is_bad = ~_equal(found, expected) & ~(found.isfinite() & expected.isfinite())
    pair = [x[is_bad][0].item() for x in (found, expected)]
    return f"the {what} has {pair[0]:.6g} where one process has {pair[1]:.6g}"


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
    is_same = _equal(found, expected)
    off, _ = squared_error(
        "", torch.where(is_same, finite, found), expected.where(~is_same, finite)
    )
    return off, squared_error("", finite, finite)[1]


def _equal(a: Tensor, b: Tensor) -> Tensor:
    return (a == b) | (a.isnan() & b.isnan())


def _ratio(off: float, size: float) -> float:
    if math.isnan(off) or not size:
        return math.inf if off else 0.0  # NaN is below no bound
    return off / size
