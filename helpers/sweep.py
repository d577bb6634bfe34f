"""Many small trainings at once, over learning rates and seeds: a sweep in the time of a few runs.

The trainings differ in seed and learning rate only, so they are rows of the same tensors
(`problems.StackedMLP`); each is what `torch.optim` would have done with it alone.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from helpers.problems import Data, StackedMLP

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
    draw, rest = torch.Generator().manual_seed(0), torch.empty(seeds, 0)
    for _ in range(updates):
        if rest.shape[1] < batch_size:
            orders = [torch.randperm(num_samples, generator=draw) for _ in range(seeds)]
            rest = torch.stack(orders)
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
    looks: int = 20,
) -> Iterator[Look]:
    """Yield (update, validation losses, shares of wrong answers) about `looks` times. Local.

    Trains len(lrs) x seeds MLPs side by side; a seed has its own start and its own order of the
    samples, the same for each learning rate. warm_up: updates over which the learning rate rises
    linearly to its value. The defaults suit digits: 2410 parameters, and 6 seeds for a spread.
    Raises ValueError where batch_size is no part of the data, or lrs or seeds are empty.
    """
    (x, y), validation = data
    model = StackedMLP(sizes, [*range(seeds)] * len(lrs), dtype=x.dtype)
    lr = torch.tensor(lrs, dtype=x.dtype).repeat_interleave(seeds)[:, None, None]
    kept = {param: {} for param in model.parameters()}
    for t, index in enumerate(deal(len(y), batch_size, seeds, updates), 1):
        index = index.repeat(len(lrs), 1)
        model.losses(x[index], y[index]).sum().backward()
        for param, own in kept.items():
            rule(param.data, param.grad, lr * min(1, t / max(warm_up, 1)), own, t)
            param.grad = None
        if t % max(1, updates // looks) == 0 or t == updates:
            yield t, *(each.view(-1, seeds).tolist() for each in model.judge(*validation))
