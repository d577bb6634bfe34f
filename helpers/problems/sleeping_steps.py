"""Steps of sleeping models on an emulated link, timed in turn, with all that happened in them."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from helpers import link

from .sleeping import SleepingModel, Span


class Step(NamedTuple):
    """One rank's step: when it began and ended, what its layers did, what the link carried.

    All in seconds of time.monotonic(), which the processes of a host share.
    """

    begin_s: float
    end_s: float
    spans: list[Span]
    sent: list[link.Completion]


def time_steps(
    models: Mapping[str, tuple[nn.Module, Callable[[], object] | None]], runs: int = 3
) -> dict[str, list[Step]]:
    """Return `runs` steps of each model, by its name; the models take turns.

    Every rank must call this, in a process group on an emulated link. models: name -> (a
    SleepingModel or a wrapper of one, what to call after its backward, if anything). Before each
    step the ranks meet on a group that is not on the link. After each, every gradient is held
    against the mean over ranks that it must be; ranks weight their losses with 1, 2, 3, ...

    Raises ValueError, naming model and layer, where a gradient is not that mean. Chapter 10.
    """
    beside = dist.new_group(backend="gloo")
    steps: dict[str, list[Step]] = {name: [] for name in models}
    for name in runs * list(models):
        model, after = models[name]
        layers = next(each for each in model.modules() if isinstance(each, SleepingModel))
        model.zero_grad()
        layers.spans.clear()
        dist.barrier(beside)
        before, begin_s = len(link.completions()), time.monotonic()
        loss = model(torch.zeros(1)).sum() * (dist.get_rank() + 1)
        loss.backward()
        if after is not None:
            after()
        end_s = time.monotonic()
        steps[name].append(Step(begin_s, end_s, layers.spans[:], link.completions()[before:]))
        _check_gradients(name, layers)
    return steps


def step_seconds(by_rank: Sequence[Mapping[str, Sequence[Step]]], name: str) -> list[float]:
    """Return the seconds of each of a model's steps, from first begin to last end. Local."""
    runs = zip(*(steps[name] for steps in by_rank), strict=True)
    return [max(x.end_s for x in each) - min(x.begin_s for x in each) for each in runs]


def _check_gradients(name: str, model: SleepingModel) -> None:
    mean = (dist.get_world_size() + 1) / 2
    for layer, parameter in enumerate(model.layers):
        found, expected = parameter.grad, mean / parameter.numel()
        if found is None or not torch.allclose(found, torch.full_like(found, expected)):
            first = None if found is None else found.flatten()[0].item()
            raise ValueError(
                f"{name}: gradient of layer {layer}: found {first}, expected {expected}"
            )
