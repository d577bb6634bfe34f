"""Gradients summed in a wider dtype than they are computed in."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from helpers import kernels


class GradientAccumulator:
    """Sums of gradients in a dtype at least as wide as `dtype`; local.

    A bfloat16 gradient has 8 significant bits: a sum that is 256 times its next addend does not
    move any more. So after each backward `add` moves the gradients into buffers of `dtype`, and
    `assign` hands the sums back for the optimizer:

        accumulator = GradientAccumulator(model.parameters())
        for batch in window:
            (loss_sum(model, batch) / total).backward()
            accumulator.add()
        accumulator.assign()
        optimizer.step()

    With `accumulate_gradients`, pass `backward=lambda loss: (loss.backward(), accumulator.add())`,
    for a plain model. Not for DistributedDataParallel: it reduces what lies in `.grad`, which
    `add` empties.

    `assign` rounds each sum to the parameter's dtype, as optimizers expect: with bfloat16
    parameters a sum is rounded there once, instead of at every micro-batch. (Each gradient was
    rounded once before, when backward wrote it.) A sum is never narrower than its parameter:
    a float64 or complex one is summed in `torch.promote_types` of its dtype and `dtype`. With
    float32 parameters and a float32 buffer nothing is gained. It costs one buffer as large as the
    parameters, in `dtype`, from the first `add` to `assign`; float32 is the default because a
    model stored in bfloat16 is the case that needs it. Frozen parameters have no buffer, a shared
    one has one, and one that got no gradient keeps None. Chapter 03 measures it.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], dtype: torch.dtype = torch.float32):
        """Raises ValueError where there is no parameter or dtype is no floating-point type."""
        self.parameters = list(dict.fromkeys(parameters))  # a shared one once
        self.dtype = dtype
        self._sums: dict[nn.Parameter, Tensor] = {}
        if not self.parameters:
            raise ValueError("no parameters, expected at least one (a generator used up before?)")
        if not dtype.is_floating_point:
            raise ValueError(f"a buffer of {dtype}, expected a floating-point dtype")

    @torch.no_grad()
    def add(self) -> None:
        """Add each gradient to its sum, and free it (`.grad` becomes None)."""
        for parameter in self.parameters:
            if parameter.grad is None:
                continue
            if parameter in self._sums:
                _add(self._sums[parameter], parameter.grad)
            else:
                dtype = torch.promote_types(parameter.dtype, self.dtype)
                self._sums[parameter] = parameter.grad.to(dtype, copy=True)
            parameter.grad = None

    @torch.no_grad()
    def assign(self) -> None:
        """Make each sum its parameter's gradient, in the parameter's dtype; sums start anew.

        Raises RuntimeError where a gradient was left by a backward that no `add` followed.
        """
        left = sum(parameter.grad is not None for parameter in self.parameters)
        if left:
            raise RuntimeError(f"{left} gradients not added, expected add() after each backward")
        for parameter in self.parameters:
            if parameter in self._sums:
                parameter.grad = self._sums.pop(parameter).to(parameter.dtype)


def _add(total: Tensor, grad: Tensor) -> None:
    """Add in the wider dtype of the two: on GPUs with the book's own kernel."""
    is_dense = total.layout == grad.layout == torch.strided
    if is_dense and total.dtype == torch.float32 and kernels.runs_triton(grad):
        kernels.accumulate_(total, grad)
    else:
        total.add_(grad)
