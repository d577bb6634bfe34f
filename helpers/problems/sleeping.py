"""A model whose layers sleep: compute that takes time and no processor, as a GPU's would."""

import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

#: A layer reached later than this share of its seconds begins then, and the delay stays.
CATCH_UP = 0.5


class Span(NamedTuple):
    """What a layer did ("forward" or "backward"), and when, in seconds of time.monotonic()."""

    name: str
    layer: int
    start_s: float
    end_s: float


class SleepingModel(nn.Module):
    """A chain of layers, each with one parameter [N], whose forward and backward sleep. Local.

    Adds the mean of each parameter to its input, so that the gradient of parameter k is known:
    the sum of what comes back, divided by N, in every element. A layer takes its seconds all in
    all: what the arithmetic takes is taken off the sleep. A layer that is reached late by
    less than half of its seconds makes up for it: on a GPU it would have been in the queue.
    `spans` collects what each layer did, in the order in which it was done.
    """

    def __init__(self, sizes: Sequence[int], forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.forward_s, self.backward_s = forward_s, backward_s
        self.spans: list[Span] = []
        self.layers = nn.ParameterList(torch.zeros(size) for size in sizes)
        self._due_s = 0.0

    def forward(self, inputs: Tensor) -> Tensor:
        inputs = inputs if inputs.requires_grad else inputs.clone().requires_grad_()
        for index, parameter in enumerate(self.layers):
            inputs = _Sleeping.apply(inputs, parameter, self, index)
        return inputs

    def begin(self, seconds: float) -> float:
        """Return when the layer that is reached now begins; it is due `seconds` later."""
        now_s = time.monotonic()
        is_queued = now_s - self._due_s < CATCH_UP * seconds
        start_s = self._due_s if is_queued else now_s
        self._due_s = start_s + seconds
        return start_s

    def end(self, name: str, layer: int, start_s: float) -> None:
        """Sleep until the layer is due, and note what it did."""
        time.sleep(max(0.0, self._due_s - time.monotonic()))
        self.spans.append(Span(name, layer, start_s, time.monotonic()))


class _Sleeping(torch.autograd.Function):
    @staticmethod
    def forward(ctx, inputs: Tensor, parameter: Tensor, model: SleepingModel, layer: int) -> Tensor:
        start_s = model.begin(model.forward_s)
        ctx.model, ctx.layer, ctx.like = model, layer, parameter
        outputs = inputs + parameter.mean()
        model.end("forward", layer, start_s)
        return outputs

    @staticmethod
    def backward(ctx, grad: Tensor):
        start_s = ctx.model.begin(ctx.model.backward_s)
        mean = grad.sum().item() / ctx.like.numel()
        grad_parameter = torch.full_like(ctx.like, mean)
        ctx.model.end("backward", ctx.layer, start_s)
        return grad, grad_parameter, None, None


def make_sleeping(
    num_layers: int = 24,
    layer_bytes: int = 250_000,
    *,
    forward_s: float = 2e-3,
    backward_s: float = 4e-3,
    dtype: torch.dtype = torch.float32,
) -> SleepingModel:
    """Return a `SleepingModel` of equal layers, all zeros. Local.

    layer_bytes: of each layer's one parameter; forward_s, backward_s: of each layer, in seconds,
    slept. Raises ValueError for less than one layer or one element. Source: an emulation, for
    machines whose ranks share their cores; real compute there drowns overlap in noise. Chapter 10.
    """
    size = layer_bytes // torch.empty((), dtype=dtype).element_size()
    if num_layers < 1 or size < 1:
        raise ValueError(
            f"make_sleeping: found {num_layers} layers of {layer_bytes} bytes, expected 1 or more"
        )
    return SleepingModel([size] * num_layers, forward_s, backward_s).to(dtype)
