"""torch's DistributedDataParallel with accumulation: torchrun --nproc-per-node 2 torch_ddp.py"""

import contextlib

import torch
import torch.nn.functional as F
from torch import nn

from helpers.process_group import process_group

ACCUMULATE = 4


def make_model():
    return nn.Sequential(nn.Linear(16, 24), nn.LayerNorm(24), nn.GELU(), nn.Linear(24, 4))


def make_optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2)


def make_scheduler(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))


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


def clip(parameters):
    nn.utils.clip_grad_norm_(parameters, max_norm=0.1)


def wrap(model):
    return nn.parallel.DistributedDataParallel(model)


def train_step(model, optimizer, micro_batches, scheduler, num_micro_batches=ACCUMULATE):
    optimizer.zero_grad()
    for index, (inputs, labels) in enumerate(micro_batches):
        is_last = index == len(micro_batches) - 1
        with contextlib.nullcontext() if is_last else model.no_sync():
            loss = F.cross_entropy(model(inputs), labels)
            (loss / len(micro_batches)).backward()
    clip(model.parameters())
    optimizer.step()
    scheduler.step()


def save_state(model, optimizer, scheduler):
    parts = {"model": model.module, "optimizer": optimizer, "scheduler": scheduler}
    return {name: part.state_dict() for name, part in parts.items()}


def load_state(state, model, optimizer, scheduler):
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])


def main():
    with process_group() as ranks:
        model = wrap(make_model())
        optimizer = make_optimizer(model.parameters())
        scheduler = make_scheduler(optimizer)
        for inputs, labels in batches(num_batches=20):
            shard = inputs[ranks.rank :: ranks.world_size], labels[ranks.rank :: ranks.world_size]
            parts = (part.tensor_split(ACCUMULATE) for part in shard)
            train_step(model, optimizer, list(zip(*parts, strict=True)), scheduler)
        if ranks.rank == 0:
            print(f"learning rate {scheduler.get_last_lr()[0]:.1e}")


if __name__ == "__main__":
    main()
