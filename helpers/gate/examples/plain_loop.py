"""A plain loop with gradients averaged by hand: torchrun --nproc-per-node 2 plain_loop.py"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from helpers.process_group import process_group


def make_model():
    return nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 4))


def make_optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def batches(num_batches=3, batch_size=48):
    generator = torch.Generator().manual_seed(1)
    for _ in range(num_batches):
        inputs = torch.randn(batch_size, 16, generator=generator)
        yield inputs, inputs[:, :4].argmax(1)


def loss_sum(model, batch):
    inputs, labels = batch
    return F.cross_entropy(model(inputs), labels, reduction="sum")


def count(batch):
    return len(batch[1])


def wrap(model):
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor.detach(), src=0)
    return model


def average_gradients(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def train_step(model, optimizer, micro_batches):
    optimizer.zero_grad()
    total = torch.zeros((), dtype=torch.float64)
    for inputs, labels in micro_batches:
        loss = F.cross_entropy(model(inputs), labels)
        loss = loss / len(micro_batches)
        loss.backward()
        total += loss.detach()
    average_gradients(model)
    optimizer.step()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def main():
    with process_group() as ranks:
        torch.manual_seed(ranks.rank)
        model = wrap(make_model())
        optimizer = make_optimizer(model.parameters())
        for inputs, labels in batches(num_batches=20):
            shard = inputs[ranks.rank :: ranks.world_size], labels[ranks.rank :: ranks.world_size]
            micro_batches = list(zip(*(part.tensor_split(4) for part in shard), strict=True))
            loss = train_step(model, optimizer, micro_batches)
        if ranks.rank == 0:
            print(f"loss {loss:.3f}")


if __name__ == "__main__":
    main()
