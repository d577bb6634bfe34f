"""A language model on padded lines, under DDP: torchrun --nproc-per-node 2 language_model.py"""

import calendar
import inspect

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from helpers.process_group import process_group

PADDING = -100
CONTEXT = 24


class LanguageModel(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.tokens = nn.Embedding(128, width)
        self.places = nn.Embedding(CONTEXT, width)
        self.block = nn.TransformerEncoderLayer(width, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, 128, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        length = tokens.shape[1]
        hidden = self.tokens(tokens) + self.places.weight[:length]
        mask = torch.ones(length, length, dtype=torch.bool).triu(1)
        return self.head(self.block(hidden, src_mask=mask))


def make_model():
    return LanguageModel()


def make_optimizer(parameters):
    return torch.optim.Adam(parameters, lr=1e-3)


def batches(num_batches=3, batch_size=17):
    lines = [line for line in inspect.getsource(calendar).splitlines() if len(line) > 1]
    for start in range(0, num_batches * batch_size, batch_size):
        rows = [torch.tensor(list(line.encode())) for line in lines[start : start + batch_size]]
        rows = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PADDING)
        rows = rows[:, : CONTEXT + 1]
        yield rows[:, :-1].clamp(min=0), rows[:, 1:]


def loss_sum(model, batch):
    tokens, targets = batch
    logits = model(tokens).flatten(0, 1)
    return F.cross_entropy(logits, targets.flatten(), ignore_index=PADDING, reduction="sum")


def count(batch):
    return int((batch[1] != PADDING).sum())


def wrap(model):
    return nn.parallel.DistributedDataParallel(model)


def train_step(model, optimizer, micro_batches):
    optimizer.zero_grad()
    numbers = torch.zeros(2, dtype=torch.float64)  # sum of losses, tokens
    numbers[1] = sum(count(batch) for batch in micro_batches)
    dist.all_reduce(numbers)
    world_size, num_tokens = dist.get_world_size(), numbers[1].item()
    loss = torch.zeros((), dtype=torch.float64)
    for batch in micro_batches:
        part = loss_sum(model, batch) / num_tokens
        (part * world_size).backward()  # DDP divides by it
        loss += part.detach()
    optimizer.step()
    dist.all_reduce(loss)
    return loss


def save_state(model, optimizer, scheduler):
    return {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}


def load_state(state, model, optimizer, scheduler):
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


def main():
    with process_group() as ranks:
        model = wrap(make_model())
        optimizer = make_optimizer(model.parameters())
        for tokens, targets in batches(num_batches=10):
            shard = tokens[ranks.rank :: ranks.world_size], targets[ranks.rank :: ranks.world_size]
            micro_batches = list(zip(*(part.tensor_split(4) for part in shard), strict=True))
            loss = train_step(model, optimizer, micro_batches)
        if ranks.rank == 0:
            print(f"loss {loss:.3f}")


if __name__ == "__main__":
    main()
