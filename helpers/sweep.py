"""Many small trainings at once, over learning rates and seeds: a sweep in the time of a few runs.

The trainings differ in seed and learning rate only, so they are rows of the same tensors
(`problems.StackedMLP`); each is what `torch.optim` would have done with it alone.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.problems import Data, StackedMLP, make_mlp

#: rule(param, grad, lr, kept, t): update in place; kept is the rule's own dict for the parameter.
Rule = Callable[[Tensor, Tensor, Tensor, dict, int], None]
#: (update, losses, shares of wrong answers), the latter two as lists: learning rates, then seeds.
Look = tuple[int, list[list[float]], list[list[float]]]


def sgd(param: Tensor, grad: Tensor, lr: Tensor, kept: dict, t: int) -> None:
    """One step of SGD without momentum. Local."""
    param.sub_(lr * grad)


def adam(
    param: Tensor, grad: Tensor, lr: Tensor, kept: dict, t: int, *, beta2: float = 0.999
) -> None:
    """Step t (from 1) of Adam, with torch's beta1 = 0.9 and eps = 1e-8. Local."""
    mean = kept.setdefault("mean", torch.zeros_like(grad)).lerp_(grad, 0.1)
    square = kept.setdefault("square", torch.zeros_like(grad)).lerp_(grad.square(), 1 - beta2)
    root = (square / (1 - beta2**t)).sqrt_().add_(1e-8)
    param.sub_(lr / (1 - 0.9**t) * mean / root)


def deal(num_samples: int, batch_size: int, seeds: int, updates: int) -> Iterator[Tensor]:
    """Yield indices [seeds, batch_size], each row in an order of its own for each epoch. Local.

    What an epoch has left over after its last whole batch is dropped.
    Raises ValueError where not even one batch fits.
    """
    if not 0 < batch_size <= num_samples:
        raise ValueError(f"a batch of {batch_size}, expected 1 to {num_samples} samples")
    draws = [torch.Generator().manual_seed(seed) for seed in range(seeds)]
    rest = torch.empty(seeds, 0, dtype=torch.int64)
    for _ in range(updates):
        if rest.shape[1] < batch_size:
            rest = torch.stack([torch.randperm(num_samples, generator=draw) for draw in draws])
        index, rest = rest[:, :batch_size], rest[:, batch_size:]
        yield index


def train(
    rule: Rule,
    batch_size: int,
    lrs: Sequence[float],
    updates: int,
    *,
    data: Data,
    sizes: Sequence[int] = (64, 32, 10),
    seeds: int = 6,
    warm_up: int = 0,
    looks: Iterable[int] | None = None,
) -> Iterator[Look]:
    """Yield (update, validation losses, shares of wrong answers) now and then. Local.

    Trains len(lrs) x seeds MLPs side by side; a seed has its own start and its own order of the
    samples, the same for each learning rate. warm_up: updates over which the learning rate rises
    linearly to its value. looks: the updates after which to yield, the last one always; by default
    1, 2, 3, 4, 6, 8, 11 and so on, by steps of about the root of 2. The defaults suit digits:
    2410 parameters, and 6 seeds for a spread.
    Raises ValueError where batch_size is no part of the data, or lrs or seeds are empty.
    """
    (x, y), validation = data
    model = StackedMLP(sizes, [*range(seeds)] * len(lrs), dtype=x.dtype)
    lr = torch.tensor(lrs, dtype=x.dtype).repeat_interleave(seeds)[:, None, None]
    kept = {param: {} for param in model.parameters()}
    looks = {round(2 ** (i / 2)) for i in range(64)} if looks is None else set(looks)
    for t, index in enumerate(deal(len(y), batch_size, seeds, updates), 1):
        index = index.repeat(len(lrs), 1)
        model.losses(x[index], y[index]).sum().backward()
        for param, own in kept.items():
            rule(param.data, param.grad, lr * min(1, t / max(warm_up, 1)), own, t)
            param.grad = None
        if t in looks or t == updates:
            yield t, *(each.view(-1, seeds).tolist() for each in model.judge(*validation))


def alone(
    updates: int,
    *,
    data: Data,
    lr: float = 0.25,
    batch_size: int = 32,
    sizes: Sequence[int] = (64, 32, 10),
    seed: int = 0,
    make: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
) -> nn.Sequential:
    """Return one MLP trained by torch's own optimizer: what a row of `train` is compared with.

    Local. make(parameters, lr) is the optimizer. The samples are dealt as to row `seed`.
    """
    x, y = data.train
    model = make_mlp(sizes, seed=seed, dtype=x.dtype)
    optimizer = make(model.parameters(), lr)
    for index in deal(len(y), batch_size, seed + 1, updates):
        optimizer.zero_grad()
        F.cross_entropy(model(x[index[seed]]), y[index[seed]]).backward()
        optimizer.step()
    return model


@dataclass(frozen=True)
class Best:
    """The learning rate with the lowest median over the seeds, and those that are as good. Local.

    losses: of the seeds at `lr`. as_good: the rates whose median lies in the range of `losses`,
    so that these seeds cannot tell them from the best; `lr` is one of them.
    """

    lr: float
    losses: Sequence[float]
    as_good: Sequence[float]

    @property
    def loss(self) -> float:
        """The median over the seeds."""
        return statistics.median(self.losses)

    def __str__(self) -> str:
        low, high = min(self.losses), max(self.losses)
        found = f"loss {self.loss:.2f} ({low:.2f} to {high:.2f}) at {fraction(self.lr)}"
        others = f"{fraction(min(self.as_good))} to {fraction(max(self.as_good))}"
        return found if len(self.as_good) == 1 else f"{found}; as good: {others}"


def fraction(rate: float) -> str:
    """A power of two as one writes it: 1/64, 2; anything else as a number. Local."""
    return f"1/{1 / rate:g}" if rate < 1 and (1 / rate).is_integer() else f"{rate:g}"


def best(losses: Sequence[Sequence[float]], lrs: Sequence[float]) -> Best:
    """Return which of lrs is best, from the losses of its seeds (rows as in `lrs`). Local."""
    medians = dict(zip(lrs, map(statistics.median, losses), strict=True))
    lr = min(medians, key=medians.__getitem__)
    own = losses[list(lrs).index(lr)]
    return Best(lr, own, [rate for rate in lrs if min(own) <= medians[rate] <= max(own)])


def updates_to(
    targets: Sequence[float],
    rule: Rule,
    batch_size: int,
    lrs: Sequence[float],
    *,
    most: int,
    every: int = 3,
    **options: Any,
) -> dict[float, list[int]]:
    """Return for each target the updates of each seed until the validation loss is below. Local.

    They are those of one learning rate: the one of lrs whose last seed is there first. Looks
    every `every` updates, and stops when all targets are reached; options are those of `train`.
    Raises ValueError where after `most` updates there is a target that no rate has reached with
    all its seeds.
    """
    first: dict[tuple[float, int, int], int] = {}  # target, learning rate, seed -> updates
    found: dict[float, list[int]] = {}
    for t, losses, _ in train(rule, batch_size, lrs, most, looks=range(0, most, every), **options):
        for target in set(targets) - set(found):
            for row, of_seeds in enumerate(losses):
                for seed, loss in enumerate(of_seeds):
                    if loss < target:
                        first.setdefault((target, row, seed), t)
                times = [first.get((target, row, seed)) for seed in range(len(of_seeds))]
                if None not in times:
                    found.setdefault(target, times)
        if len(found) == len(set(targets)):
            return found
    missed = sorted(set(targets) - set(found))
    raise ValueError(f"batches of {batch_size}: {missed} not reached after {most} updates")


def fit_bend(updates: Mapping[int, float]) -> tuple[float, float]:
    """Return (least, bend) of S = least (1 + bend / B), from batch size -> S. Local.

    The least squares of log S over a grid of whole bends below 200; least is then a mean of
    ratios.
    """
    fits = []
    for bend in range(1, 200):
        ratios = [math.log(s / (1 + bend / b)) for b, s in updates.items()]
        least = statistics.mean(ratios)
        fits.append((sum((ratio - least) ** 2 for ratio in ratios), math.exp(least), float(bend)))
    return min(fits)[1:]
