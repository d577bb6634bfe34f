"""Many small trainings as one: models side by side in one tensor, so that seeds cost little.

Legend of shapes: R models, B samples, I inputs, O outputs.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .models import make_mlp


class StackedMLP(nn.Module):
    """R models of `make_mlp` side by side: inputs [R, B, I] to outputs [R, B, O]. Local.

    seeds: one for each model; equal seeds start equal. The models share nothing: the gradient of
    a sum of their losses has in row r the gradient of model r. Weights are [R, I, O], biases
    [R, 1, O], so that a learning rate [R, 1, 1] gives each model its own.

    Raises ValueError where there is no seed. Chapter 13 trains with it.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        seeds: Sequence[int],
        *,
        dtype: torch.dtype = torch.float32,
    ):
        super().__init__()
        if not len(seeds):
            raise ValueError("found no seed, expected one for each model")
        each = {seed: make_mlp(sizes, seed=seed, dtype=dtype) for seed in dict.fromkeys(seeds)}
        models = [[layer for layer in each[seed] if isinstance(layer, nn.Linear)] for seed in seeds]
        layers = list(zip(*models, strict=True))
        self.weights = nn.ParameterList(
            torch.stack([one.weight.detach().T for one in layer]) for layer in layers
        )
        self.biases = nn.ParameterList(
            torch.stack([one.bias.detach()[None] for one in layer]) for layer in layers
        )

    def forward(self, inputs: Tensor) -> Tensor:
        x, last = inputs, len(self.weights) - 1
        for index, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x, weight)
            x = x.relu() if index < last else x
        return x

    def losses(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return each model's mean cross-entropy [R] for inputs [R, B, I], labels [R, B]. Local."""
        return F.cross_entropy(self(inputs).mT, labels, reduction="none").mean(1)

    def judge(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return loss and share of wrong answers [R] on samples [B, I] that all share. Local."""
        count = len(self.biases[0])
        with torch.no_grad():
            outputs = self(inputs.expand(count, *inputs.shape))
        labels = labels.expand(count, -1)
        losses = F.cross_entropy(outputs.mT, labels, reduction="none").mean(1)
        return losses, (outputs.argmax(-1) != labels).float().mean(1)
