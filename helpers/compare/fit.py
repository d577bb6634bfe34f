"""Which known fault gives the numbers that were found."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from helpers.compare.hypotheses import Window, hypotheses
from helpers.compare.notes import Note
from helpers.compare.replay import Parts, find, vector

Vectors = Callable[[Tensor], Tensor]


class Fit(NamedTuple):
    """Numbers found, [N], beside the parts that they should be a mean of, [W x K, N].

    `clip` is what the training does to a gradient before the optimizer's step; `previous` the
    gradient of the step before; `notes` are the gradients found and expected, by name.
    """

    parts: Tensor
    found: Tensor
    window: Window
    bound: float
    clip: Vectors | None = None
    previous: Tensor | None = None
    notes: tuple[Note, Note] | None = None
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, trial: Any, parts: Parts, names: list[str]) -> "Fit":
        """Return the gradients of a trial's first step that differs. Local."""
        here, there = (
            find(notes, trial.step, "gradient") for notes in (trial.notes, trial.expected)
        )
        before = find(trial.notes, trial.step - 1, "gradient") if trial.step else None
        return cls(
            parts.gradients,
            vector(here, names, there),
            parts.window,
            max(1e-9, 4 * trial.allowed["gradient"]),
            _clipper(trial.training, there, names) if trial.training.clip else None,
            vector(before, names, there) if before else None,
            (here, there),
            tuple(names),
        )

    @property
    def truth(self) -> Tensor:
        return self._weighed(self.window.truth)

    def causes(self) -> Iterator[str]:
        """Yield what fits the gradients, the simplest first. Local."""
        yield from self._absent()
        if self._is_right():
            return  # off by less than can be told apart
        yield from (f"all gradients: {words}" for words in self.weighed())
        yield from self._some()
        if self.previous is not None and self._fits(self._clipped(self.previous + self.truth)):
            yield "the gradient of the step before is still in it: no zero_grad between steps"
        if self.clip:
            yield from self._clipping()
        yield from self._constant()

    def weighed(self) -> Iterator[str]:
        """Yield the words of the hypotheses of fewest faults that fit, in one line. Local."""
        known = () if self._is_right() else hypotheses(self.window)
        fitting = [each for each in known if self._gives(each.weights)]
        fewest = min((each.num_faults for each in fitting), default=0)
        words = [each.words for each in fitting if each.num_faults == fewest]
        if words:
            yield ", or ".join(words[:3])

    def _is_right(self) -> bool:
        return self._gives(self.window.truth)

    def _weighed(self, weights: Tensor) -> Tensor:
        return weights.flatten() @ self.parts

    def _clipped(self, numbers: Tensor) -> Tensor:
        return self.clip(numbers) if self.clip else numbers

    def _gives(self, weights: Tensor) -> bool:
        return self._fits(self._clipped(self._weighed(weights)))

    def _fits(self, numbers: Tensor) -> bool:
        return bool((numbers - self.found).norm() <= self.bound * numbers.norm())

    def _absent(self) -> Iterator[str]:
        """Gradients that are None, or zero, on one side only."""
        here, there = (note.tensors for note in self.notes)
        added = [name for name, x in there.items() if x is None and here[name] is not None]
        if added and not any(bool(here[name].any()) for name in added):
            yield (
                f"zeros for {', '.join(added[:3])}, which has no gradient (None) in one process: "
                "momentum or weight decay would move it"
            )
        if not bool(self.found.any()):
            yield "no gradient is left when the optimizer steps: zero_grad after backward?"

    def _some(self) -> Iterator[str]:
        """A hypothesis for those tensors only that are not right."""
        sizes = [self.notes[1].tensors[name].numel() for name in self.names]
        off, bound = (self.truth - self.found).split(sizes), self.bound * self.truth.norm()
        is_wrong = [bool(part.norm() > bound) for part in off]
        wrong = [name for name, bad in zip(self.names, is_wrong, strict=True) if bad]
        if self.clip or not 0 < len(wrong) < len(self.names):
            return
        chosen = torch.tensor(is_wrong).repeat_interleave(torch.tensor(sizes))
        part = self._replace(parts=self.parts[:, chosen], found=self.found[chosen])
        names = ", ".join(wrong[:3]) + (", ..." if len(wrong) > 3 else "")
        yield from (f"{names} alone of {len(self.names)}: {words}" for words in part.weighed())

    def _clipping(self) -> Iterator[str]:
        """Clipping at another place than once, after averaging, before the optimizer's step."""
        if self._fits(self.truth):
            yield "the gradient is not clipped when the optimizer steps"
        counts = self.window.counts
        of_each = 1 / (counts * counts.numel()) if bool((counts > 0).all()) else self.window.truth
        for weights in (self.window.truth, of_each):
            parts = weights[..., None] * self.parts.view(*counts.shape, -1)  # [W, K, N]
            own = parts * len(counts)  # before averaging
            at_each = (
                self._clip_each(parts.sum(0)),
                self._mean(self._clip_each(part) for part in own),
                self._clipped(self._mean(self._clip_each(part[:-1]) + part[-1] for part in own)),
            )
            if any(map(self._fits, at_each)):
                yield "clipped at each micro-batch, expected once for the window"
            if self._fits(self._mean(self._clipped(part.sum(0)) for part in own)):
                yield "each rank clips its own gradient, expected after averaging over the ranks"

    def _clip_each(self, parts: Tensor) -> Tensor:
        """Return the sum of [K, N] as it is where each addition is followed by clipping."""
        total = torch.zeros_like(self.found)
        for part in parts:
            total = self._clipped(total + part)
        return total

    @staticmethod
    def _mean(vectors: Iterable[Tensor]) -> Tensor:
        return torch.stack(list(vectors)).mean(0)

    def _constant(self) -> Iterator[str]:
        truth = self._clipped(self.truth)
        ratio = (self.found @ truth / (truth @ truth)).item()
        if ratio and self._fits(truth * ratio):
            yield f"all gradients: {times(ratio)} the right ones, a factor of no known cause"


def times(ratio: float) -> str:
    """Return a factor in words, near 1 by how far it is from it. Local."""
    off = ratio - 1
    if abs(off) < 5e-4:
        return f"1 {'-' if off < 0 else '+'} {abs(off):.0e} times"
    return f"{ratio:.4g} times"


def _clipper(training: Any, like: Note, names: list[str]) -> Vectors:
    """Return a function that clips a gradient given as a vector, as the training does."""
    parameters = [torch.nn.Parameter(torch.zeros_like(like.tensors[name])) for name in names]
    sizes = [parameter.numel() for parameter in parameters]

    def clip(numbers: Tensor) -> Tensor:
        for parameter, part in zip(parameters, numbers.split(sizes), strict=True):
            parameter.grad = part.to(parameter).view_as(parameter).clone()
        training.clip(parameters)
        return torch.cat([parameter.grad.cpu().double().flatten() for parameter in parameters])

    return clip
