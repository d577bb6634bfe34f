"""A step of real training, wrapped in one way or another."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from helpers.problems import count_tokens, make_gpt, token_loss_sum

VOCABULARY_SIZE = 256
Wrap = Callable[[nn.Module], nn.Module]


@dataclass(frozen=True)
class Model:
    """A GPT to measure, and the micro-batch that it is given."""

    words: str
    options: Mapping[str, int]
    num_tokens: int  # one row of so many
    steps_a_turn: int

    def make(self) -> nn.Module:
        return make_gpt(vocabulary_size=VOCABULARY_SIZE, **self.options)


SMALL = Model("GPT 0.87 M", {"width": 128, "depth": 4, "context": 64}, 64, 4)
LARGE = Model("GPT 10.9 M", {"width": 384, "depth": 6, "heads": 6, "context": 64}, 64, 1)


class Training:
    """A model, wrapped, and its optimizer: plain SGD, which keeps no state."""

    def __init__(self, model: Model, wrap: Wrap) -> None:
        self.model = wrap(model.make())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        generator = torch.Generator().manual_seed(dist.get_rank())
        rows = torch.randint(VOCABULARY_SIZE, (1, model.num_tokens + 1), generator=generator)
        self.batch = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def step(self, num_micro_batches: int = 1, set_to_none: bool = True) -> None:
        """One step; every rank must call this. All micro-batches but the last under no_sync."""
        self.optimizer.zero_grad(set_to_none=set_to_none)
        for index in range(num_micro_batches):
            is_last = index == num_micro_batches - 1
            with nullcontext() if is_last else self.model.no_sync():
                loss = token_loss_sum(self.model, self.batch) / count_tokens(self.batch)
                loss.backward()
        self.optimizer.step()
