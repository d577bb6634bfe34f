"""Many small trainings at once, over learning rates and seeds: a sweep in the time of a few runs.

The trainings differ in seed and learning rate only, so they are rows of the same tensors
(`problems.StackedMLP`); each is what `torch.optim` would have done with it alone.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

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
