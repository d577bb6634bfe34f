"""Where numbers that are not finite come from, when those of one process are finite."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from helpers.compare.notes import Note
from helpers.compare.replay import Parts, find

KINDS = ("loss", "gradient", "parameter", "buffer")


def causes(trial: Any, parts: Parts) -> Iterator[str]:
    """Yield which part of the batch has them alone, or which kind of number has them first. Local.

    Nothing where this rank's numbers of the step are finite wherever the reference's are.
    """
    found = (
        (kind, _first(find(trial.notes, trial.step, kind), find(trial.expected, trial.step, kind)))
        for kind in KINDS
    )
    kind, value = next(((kind, value) for kind, value in found if value), ("", ""))
    if kind:
        yield from _of_a_part(parts)
        yield _by_kind(kind, value)


def at_the_start(trial: Any) -> str:
    """Return what is said of them before the first step; or "". Local."""
    found, expected = trial.notes[trial.index], trial.expected[trial.index]
    value = _first(found, expected)
    if not value:
        return ""
    return f"a {found.kind} is {value} on this rank before any step, from make_model or from wrap"


def _first(found: Note | None, expected: Note | None) -> str:
    """Return "nan", "inf" or "-inf", the first in `found` where `expected` is finite; or ""."""
    for name, x in (found.tensors or {}).items() if found and expected else ():
        there = expected.tensors.get(name)
        if x is None or there is None or x.shape != there.shape or not x.is_floating_point():
            continue
        bad = x[~x.isfinite() & there.isfinite()]
        if bad.numel():
            return str(bad[0].item())
    return ""


def _of_a_part(parts: Parts) -> Iterator[str]:
    counts = parts.window.counts
    for index, (loss, gradient) in enumerate(zip(parts.losses, parts.gradients, strict=True)):
        rank, micro = divmod(index, counts.shape[1])
        for kind, x in (("loss_sum", loss), ("the gradient", gradient)):
            if not bool(x.isfinite().all()):
                yield (
                    f"{kind} of micro-batch {micro} of rank {rank} is {_worst(x)} by itself "
                    f"(count {counts[rank, micro]:.15g}), finite over the whole batch"
                )
    for rank, micro in (counts == 0).nonzero().tolist():
        yield (
            f"micro-batch {micro} of rank {rank} has a count of 0: a mean over it is 0 / 0, "
            "expected the sum, divided once by the count of all"
        )


def _worst(x: Tensor) -> str:
    return str(x[~x.isfinite()].flatten()[0].item())


def _by_kind(kind: str, value: str) -> str:
    if kind == "loss":
        return f"the loss told is {value}; that of each part is finite"
    if kind == "gradient":
        return (
            f"{value} comes into the gradient after backward, or by a factor: "
            "the gradient of each part is finite"
        )
    return f"a {kind} is {value} after the step, while the gradient before it is finite"
