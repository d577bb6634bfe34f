"""How noisy a gradient is: the noise scale from norms of small and of large batches.

A mean over B samples has E|g|^2 = |G|^2 + tr(S) / B, with G the gradient over all data and S the
covariance of single samples' gradients. Two batch sizes are two equations; their solution, and
tr(S) / |G|^2, the noise scale in samples, is what this module returns.
"""

import math
import random
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

Pair = tuple[float, float]


def squared_norm(gradients: Iterable[Tensor | None]) -> float:
    """Return the sum of squares of all numbers of all tensors, in float64; None adds 0. Local."""
    return sum(g.detach().double().square().sum().item() for g in gradients if g is not None)


def per_sample_gradients(
    model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], batch: tuple[Tensor, Tensor]
) -> Tensor:
    """Return each sample's gradient as a row, [samples, parameters]. Local.

    loss(outputs, target) of one sample, a scalar. For small models: what the estimates are held
    against. Layers whose samples see each other (BatchNorm) have no such thing.
    """
    params = {name: param.detach() for name, param in model.named_parameters()}

    def of_one(params: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return loss(functional_call(model, params, (x,)), y)

    grads = vmap(grad(of_one), in_dims=(None, 0, 0))(params, *batch)
    return torch.cat([each.flatten(1) for each in grads.values()], dim=1)


def exact(
    model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], batch: tuple[Tensor, Tensor]
) -> float:
    """Return the noise scale of the weights by brute force, from each sample's gradient. Local.

    batch: all data; tr(S) is estimated with N - 1, G is their mean gradient. Arguments and limits
    are those of `per_sample_gradients`.
    """
    each = per_sample_gradients(model, loss, batch)
    return (each.var(0).sum() / each.mean(0).square().sum()).item()


@dataclass
class NoiseScale:
    """Squared norms of gradients of two batch sizes, and what they say together. Local.

    small, big: samples in the two batches. `add` takes a pair of squared norms; `trace` (tr S),
    `squared_gradient` (|G|^2) and `samples` (tr S / |G|^2) are from the means over all pairs.

    The first two are unbiased where samples are drawn independently. Their ratio is not: with few
    pairs it scatters, mostly upwards, and where the estimate of |G|^2 is not positive there is
    none (`samples` is infinite). A mean of single pairs' ratios means nothing. Samples drawn
    without replacement from N make the |G|^2 of these N come out tr(S) / N too small: they tell
    of the gradient over all that the N were drawn from.

    Raises ValueError where big is not larger than small. Source: arXiv:1812.06162, appendix A.1.
    Built in chapter 13.
    """

    small: int
    big: int
    pairs: list[Pair] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not 0 < self.small < self.big:
            raise ValueError(
                f"found batches of {self.small} and {self.big}, expected 0 < small < big"
            )

    def add(self, small_norm: float, big_norm: float) -> None:
        """Note squared norms: of small batches (their mean) and of the big one. Local."""
        self.pairs.append((small_norm, big_norm))

    @property
    def trace(self) -> float:
        """The trace of the covariance of single samples' gradients; ValueError without pairs."""
        small, big = self._means(self.pairs)
        return (small - big) / (1 / self.small - 1 / self.big)

    @property
    def squared_gradient(self) -> float:
        """|G|^2, which may come out negative; ValueError without pairs."""
        small, big = self._means(self.pairs)
        return (self.big * big - self.small * small) / (self.big - self.small)

    @property
    def samples(self) -> float:
        """The noise scale, in samples; infinite where |G|^2 is lost in the noise."""
        return self._samples(self.pairs)

    def interval(self, draws: int = 200, seed: int = 0) -> Pair:
        """Return the 10th and 90th percentile of `samples` over pairs drawn anew (bootstrap)."""
        found = sorted(self.redrawn(len(self.pairs), draws, seed))
        return found[draws // 10], found[-1 - draws // 10]

    def redrawn(self, count: int, draws: int = 200, seed: int = 0) -> list[float]:
        """Return what `samples` would be from `count` pairs, drawn anew from all, `draws` times.

        Raises ValueError without pairs, or for a count below 1.
        """
        if not self.pairs or count < 1:
            raise ValueError(f"found {count} of {len(self.pairs)} pairs, expected 1 of 1 or more")
        draw = random.Random(seed)
        return [self._samples(draw.choices(self.pairs, k=count)) for _ in range(draws)]

    def _samples(self, pairs: Sequence[Pair]) -> float:
        part = NoiseScale(self.small, self.big, list(pairs))
        return part.trace / part.squared_gradient if part.squared_gradient > 0 else math.inf

    @staticmethod
    def _means(pairs: Sequence[Pair]) -> Pair:
        if not pairs:
            raise ValueError("found no pair of norms, expected one or more from add()")
        small, big = zip(*pairs, strict=True)
        return math.fsum(small) / len(pairs), math.fsum(big) / len(pairs)


def micro_batch_norms(
    model: nn.Module, window: Sequence[Any], loss_sum: Callable, count: Callable[[Any], int]
) -> Pair:
    """Return the micro-batches' mean squared norm and the window's; add its mean gradient. Local.

    The window's micro-batches are of equal count, and that is `small`; `big` is all of them.
    Gradients already there are kept out of both norms. Raises ValueError for unequal counts,
    before any forward.
    """
    counts = [count(batch) for batch in window]
    if len(set(counts)) != 1 or counts[0] < 1:
        raise ValueError(f"found micro-batches that count {counts}, expected equal ones, above 0")
    params, small = [p for p in model.parameters() if p.requires_grad], []
    sums = [torch.zeros_like(p) for p in params]
    for batch in window:
        loss = loss_sum(model, batch) / counts[0]
        grads = torch.autograd.grad(loss, params, allow_unused=True, materialize_grads=True)
        small.append(squared_norm(grads))
        for total, own in zip(sums, grads, strict=True):
            total += own / len(window)
    for param, total in zip(params, sums, strict=True):
        param.grad = total if param.grad is None else param.grad + total
    return math.fsum(small) / len(small), squared_norm(sums)


class RankNorms:
    """A communication hook that averages, and notes norms before and after. Every rank makes one.

    model: a DistributedDataParallel, torch's or ours, that has no hook yet, in which each rank's
    loss is the mean of its own batch; all of these are equal, and that is `small`. `big` is the
    batch of all ranks. A gradient outside its hook is the mean already, the same on every rank:
    its norm before and after says nothing.
    """

    def __init__(self, model: nn.Module) -> None:
        self.before = self.after = 0.0
        self._lock = threading.Lock()  # buckets may arrive on several threads at once
        model.register_comm_hook(self, RankNorms.average)

    def average(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Sum the bucket over all ranks, divide, note both squared norms. Every rank."""
        flat = bucket.buffer()
        self.before += squared_norm([flat])
        flat.div_(dist.get_world_size())
        sent = dist.all_reduce(flat, async_op=True).get_future()
        return sent.then(self._note)

    def _note(self, sent: torch.futures.Future) -> Tensor:
        flat = sent.value()[0]
        square = squared_norm([flat])
        with self._lock:
            self.after += square
        return flat

    def pair(self) -> Pair:
        """Return the mean over ranks of the norm before, and that after, and start anew.

        Every rank must call this, after each backward: one all-reduce of a number.
        """
        before = torch.tensor(self.before, dtype=torch.float64)
        dist.all_reduce(before)
        found = before.item() / dist.get_world_size(), self.after
        self.before = self.after = 0.0
        return found
