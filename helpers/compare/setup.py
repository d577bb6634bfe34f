"""What is trained, the same for every way to split a batch, and its parts on each rank."""

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from helpers.accumulate.windows import cut, map_tensors, num_samples
from helpers.compare.returned import check_model
from helpers.process_group import Ranks

#: Layers whose numbers depend on other samples or on chance, while they train: BatchNorm,
#: InstanceNorm with running statistics, dropout.
UNSTEADY = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd)


@dataclass(frozen=True)
class Training:
    """A model and how it is trained; what is None is left out, and the gate's own loop trains.

    The options are described at `assert_same_training`, which takes them.
    """

    make_model: Callable[[], nn.Module]
    make_optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    loss_sum: Callable[[nn.Module, Any], Tensor]
    batches: Sequence[Any]
    count: Callable[[Any], int]
    dtype: torch.dtype
    wrap: Callable[[nn.Module], nn.Module] | None = None
    make_scheduler: Callable[[torch.optim.Optimizer], Any] | None = None
    clip: Callable[[list[nn.Parameter]], Any] | None = None
    train_step: Callable[..., Any] | None = None
    save_state: Callable[..., Any] | None = None
    load_state: Callable[..., None] | None = None
    same_start: bool = False
    slices: int = 1
    is_still: bool = False

    def still(self) -> "Training":
        """Return the same with BatchNorm and dropout as in evaluation, also while training."""
        return dataclasses.replace(self, is_still=True)

    def offset(self, ranks: Ranks) -> int:
        """Return what is added to this rank's numbers before `wrap`.

        Else replicas would be equal without a broadcast, and one that is missing would not show.
        """
        return 0 if self.same_start else ranks.rank

    def build(self, ranks: Ranks, offset: int = 0) -> nn.Module:
        """Return the model in this dtype, on the rank's device. Local. Raises as check_model."""
        _seed(0)
        module = self.make_model()
        check_model(module)
        module.to(ranks.device, self.dtype)
        for tensor in (*module.parameters(), *module.buffers()) if offset else ():
            tensor.data = ~tensor if tensor.dtype == torch.bool else tensor.detach() + offset
        if self.is_still:
            make_still(module)
        _seed(ranks.rank)
        return module

    def window(self, batch: Any, ranks: Ranks, num_micro_batches: int) -> list[Any]:
        """Return this rank's part of the batch in micro-batches, on its device. Local.

        Parts are contiguous, and unequal where the batch does not divide.
        """
        edges = _edges(0, num_samples(batch), ranks.world_size)
        edges = _edges(edges[ranks.rank], edges[ranks.rank + 1], num_micro_batches)
        parts = [cut(batch, slice(*pair)) for pair in itertools.pairwise(edges)]
        return [map_tensors(part, lambda x: self._placed(x, ranks.device)) for part in parts]

    def num_parts(self, step: int, num_micro_batches: int) -> int:
        """Return the length of a step's window: one less at the end of the user's own loop.

        There a divisor that is a constant, and not the window's length, shows.
        """
        is_short = self.train_step is not None and 0 < step == len(self.batches) - 1
        return max(1, num_micro_batches - is_short)

    def _placed(self, tensor: Tensor, device: torch.device) -> Tensor:
        return tensor.to(device, self.dtype if tensor.is_floating_point() else tensor.dtype)


def unsteady(module: nn.Module) -> list[str]:
    """Return the names of BatchNorm and dropout layers that would act so in training. Local."""
    return [
        f"{type(layer).__name__} {name}".rstrip()
        for name, layer in module.named_modules()
        if isinstance(layer, UNSTEADY) and getattr(layer, "p", 1)
    ]


def make_still(module: nn.Module) -> None:
    """Put BatchNorm and dropout into evaluation for good, whatever the training loop says."""
    for layer in module.modules():
        if isinstance(layer, UNSTEADY):
            layer.eval()
            layer.train = lambda mode=True, layer=layer: layer


def _seed(number: int) -> None:
    torch.manual_seed(number)
    np.random.seed(number)
    random.seed(number)


def _edges(start: int, stop: int, num_parts: int) -> list[int]:
    return [start + (stop - start) * part // num_parts for part in range(num_parts + 1)]
