"""Data parallel in its simplest form: one all-reduce a parameter, after backward."""

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from helpers.data_parallel.replicas import in_place, make_replicas


class DataParallelNaive(nn.Module):
    """A module that is the same on every rank, and whose gradients can be averaged over the ranks.

        model = DataParallelNaive(make_model())
        loss = loss_sum(model, shard) * world_size / global_count
        loss.backward()
        model.average_gradients()
        optimizer.step()

    Every rank must construct it: parameters and buffers become those of the group's first rank.
    `forward` is the module's own; `.module` is the module. Equal to one process on the global
    batch where the loss of a sample depends on nothing but that sample and the parameters: not
    with BatchNorm, nor with dropout. Buffers are broadcast once, at the start.

    Raises ValueError on every rank where names, shapes or dtypes differ between ranks.
    Source: arXiv:2006.15704, section 3.1. Built in chapter 05.
    """

    def __init__(self, module: nn.Module, group: dist.ProcessGroup | None = None):
        super().__init__()
        self.module, self.process_group = module, group
        make_replicas(module, group)

    def forward(self, *inputs: Any, **named_inputs: Any) -> Any:
        return self.module(*inputs, **named_inputs)

    @torch.no_grad()
    def average_gradients(self) -> None:
        """Replace each gradient by its mean over the ranks: a sum, divided by the world size once.

        Every rank must call this, after its last backward of a step and before the optimizer's.
        One all-reduce a parameter, and a small one ahead of them: it tells which ranks have which
        gradient. A rank without one takes part with zeros, and has the mean afterwards. Where no
        rank has it (a frozen parameter, an unused one) it stays None, so that the optimizer
        passes over it as it does in one process.

        Raises ValueError on every rank where a gradient is sparse.
        """
        world_size = dist.get_world_size(self.process_group)
        for parameter, num_ranks in zip(self.parameters(), self._count_gradients(), strict=True):
            if num_ranks == 0:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            in_place(dist.all_reduce, parameter.grad, group=self.process_group)
            parameter.grad /= world_size

    def _count_gradients(self) -> list[float]:
        """Return for each parameter on how many ranks it has a gradient."""
        parameters = dict(self.module.named_parameters())
        here = [_presence(parameter) for parameter in parameters.values()]
        device = next((parameter.device for parameter in parameters.values()), None)
        counts = torch.tensor(here, dtype=torch.float64, device=device)
        dist.all_reduce(counts, group=self.process_group)
        found = dict(zip(parameters, counts.tolist(), strict=True))
        sparse = [name for name, count in found.items() if math.isnan(count)]
        if sparse:
            raise ValueError(f"sparse gradients of {', '.join(sparse)}, expected dense ones")
        return list(found.values())


def _presence(parameter: nn.Parameter) -> float:
    """1 where there is a gradient, 0 where not; NaN for a sparse one, which no sum hides."""
    if parameter.grad is None:
        return 0.0
    return 1.0 if parameter.grad.layout == torch.strided else math.nan
