"""The gate on set-ups that are right, in every part it names a cause of, and as a command."""

import contextlib
import copy
import functools
import io
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from pickle import UnpicklingError

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from gates_together import gates_together
from torch import nn

from helpers.compare import replay, resume, yardstick
from helpers.compare.noise import noise_floor
from helpers.compare.outcome import Outcome, Plan
from helpers.compare.same_training import same_training
from helpers.compare.setup import Training
from helpers.compare.trainer import Trainer, reference
from helpers.data_parallel import DataParallelNaive, DistributedDataParallel
from helpers.gate import command, main, table
from helpers.gate.examples import path_of
from helpers.gate.failure import told
from helpers.gate.script import OPTIONAL, REQUIRED
from helpers.launch import RankFailed
from helpers.launch.frames import short_name
from helpers.process_group import Ranks

TorchDDP = nn.parallel.DistributedDataParallel
schedulers = torch.optim.lr_scheduler
ALONE = Ranks(0, 0, 1, torch.device("cpu"), "gloo")


def make_mlp():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def batches(sizes=(24, 24, 24)):
    generator = torch.Generator().manual_seed(3)
    inputs = [torch.randn(size, 6, generator=generator) for size in sizes]
    return [(x, x[:, :3].argmax(1)) for x in inputs]


def loss_sum(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1], reduction="sum")


def count(batch):
    return len(batch[1])


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def training(**options) -> Training:
    given = {
        "make_model": make_mlp,
        "make_optimizer": sgd,
        "loss_sum": loss_sum,
        "batches": batches(),
        "count": count,
        "dtype": torch.float64,
    }
    return Training(**given | options)


def clip(parameters):
    nn.utils.clip_grad_norm_(parameters, 0.05)


def part_of(name, *arguments, **options):
    return functools.partial(getattr(schedulers, name), *arguments, **options)


# set-ups that are right


class Tied(nn.Module):
    """Tied weights, a frozen layer, a parameter that nothing uses, padding in unequal lengths."""

    def __init__(self):
        super().__init__()
        self.tokens, self.head = nn.Embedding(7, 6), nn.Linear(6, 7, bias=False)
        self.frozen, self.unused = nn.Linear(6, 6), nn.Parameter(torch.ones(2))
        self.frozen.requires_grad_(False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        return self.head(torch.tanh(self.frozen(self.tokens(tokens))))


def padded(num_batches=3, num_rows=13):
    """Rows of 1 to 5 tokens, the rest of the targets -100."""
    generator = torch.Generator().manual_seed(4)
    for _ in range(num_batches):
        rows = torch.randint(7, (num_rows, 6), generator=generator)
        lengths = torch.randint(1, 6, (num_rows, 1), generator=generator)
        yield rows[:, :-1], rows[:, 1:].masked_fill(torch.arange(5) >= lengths, -100)


def token_loss_sum(model, batch):
    logits = model(batch[0]).flatten(0, 1)
    return F.cross_entropy(logits, batch[1].flatten(), reduction="sum")


def count_tokens(batch):
    return int((batch[1] != -100).sum())


TOKENS = {
    "make_model": Tied,
    "batches": list(padded()),
    "loss_sum": token_loss_sum,
    "count": count_tokens,
}


def sharded(module):
    from torch.distributed.fsdp import fully_shard

    fully_shard(module[0])
    return fully_shard(module)


def autocast_loss_sum(model, batch):
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(batch[0])
    return F.cross_entropy(logits.float(), batch[1], reduction="sum")


def own_step(model, optimizer, micro_batches):
    optimizer.zero_grad()
    for index, (inputs, labels) in enumerate(micro_batches):
        with model.no_sync() if index < len(micro_batches) - 1 else contextlib.nullcontext():
            loss = F.cross_entropy(model(inputs), labels) / len(micro_batches)
            loss.backward()
    optimizer.step()


def scaled_step(model, optimizer, micro_batches, scheduler):
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    model.zero_grad()
    for inputs, labels in micro_batches:
        scaler.scale(F.cross_entropy(model(inputs), labels) / len(micro_batches)).backward()
    model.average_gradients()
    scaler.unscale_(optimizer)
    clip(model.parameters())
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()


def closure_step(model, optimizer, micro_batches):
    def closure():
        optimizer.zero_grad()
        for inputs, labels in micro_batches:
            (F.cross_entropy(model(inputs), labels) / len(micro_batches)).backward()
        model.average_gradients()

    optimizer.step(closure)


def spread_adam(parameters):
    from torch.distributed.optim import ZeroRedundancyOptimizer  # slow to import

    return ZeroRedundancyOptimizer(parameters, optim.Adam, lr=0.1)


class Attention(nn.Module):
    """The gradient of a key's bias is zero but for rounding, which Adam divides by itself."""

    def __init__(self):
        super().__init__()
        self.tokens, self.head = nn.Embedding(7, 6), nn.Linear(6, 7)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, tokens):
        hidden = self.tokens(tokens)
        return self.head(self.attention(hidden, hidden, hidden)[0])


class Sparse(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Embedding(7, 6, sparse=True), nn.Linear(6, 7))


def once():
    """Return a wrapper that copies rank 0's numbers the first time only, as a global flag may."""
    done = []

    def wrap(module):
        if not done:
            done.append(DataParallelNaive(module))
        model = DataParallelNaive.__new__(DataParallelNaive)
        nn.Module.__init__(model)
        model.module, model.process_group = module, None
        return model

    return wrap


def by_shape(parameters):
    both = itertools.groupby(sorted(parameters, key=lambda x: x.ndim), lambda x: x.ndim)
    groups = [{"params": list(group), "weight_decay": 0.1 * (ndim - 1)} for ndim, group in both]
    return torch.optim.AdamW(groups, lr=0.01)


optim = torch.optim
two = (part_of("LinearLR"), part_of("ExponentialLR", gamma=0.5))
RIGHT = {
    "SGD": {"make_optimizer": functools.partial(optim.SGD, lr=0.1)},
    "Nesterov": {
        "make_optimizer": functools.partial(optim.SGD, lr=0.1, momentum=0.9, nesterov=True)
    },
    "Adam": {"make_optimizer": optim.Adam},
    "AMSGrad": {"make_optimizer": functools.partial(optim.AdamW, amsgrad=True)},
    "RMSprop": {"make_optimizer": functools.partial(optim.RMSprop, momentum=0.5)},
    "Adagrad": {"make_optimizer": optim.Adagrad},
    "groups of parameters": {"make_optimizer": by_shape},
    "StepLR": {"make_scheduler": part_of("StepLR", step_size=1)},
    "cosine": {"make_scheduler": part_of("CosineAnnealingLR", T_max=3)},
    "OneCycleLR": {"make_scheduler": part_of("OneCycleLR", max_lr=0.1, total_steps=6)},
    "LambdaLR": {"make_scheduler": part_of("LambdaLR", lr_lambda=lambda step: 1 / (1 + step))},
    "SequentialLR": {
        "make_scheduler": lambda optimizer: schedulers.SequentialLR(
            optimizer, [make(optimizer) for make in two], milestones=[1]
        )
    },
    "clipped": {"clip": clip},
    "clipped by value": {"clip": lambda parameters: nn.utils.clip_grad_value_(parameters, 0.01)},
    "unequal batches": {"batches": batches((23, 25, 22))},
    "tied, frozen, padded": TOKENS,
    "tied, frozen, padded, torch's DDP": TOKENS
    | {"wrap": functools.partial(TorchDDP, find_unused_parameters=True)},
    "torch's DDP": {"wrap": TorchDDP, "make_optimizer": optim.Adam},
    "torch's DDP, own step": {"wrap": TorchDDP, "train_step": own_step},
    "our DDP, own step": {"wrap": DistributedDataParallel, "train_step": own_step},
    "fully_shard": {
        "wrap": sharded,
        "same_start": True,
        "make_optimizer": optim.Adam,
        "make_scheduler": part_of("StepLR", step_size=1),
        "clip": clip,
    },
    "a scaler, own step": {
        "wrap": DataParallelNaive,
        "train_step": scaled_step,
        "make_scheduler": part_of("StepLR", step_size=1),
        "clip": clip,
    },
    "float32": {"dtype": torch.float32, "make_optimizer": optim.Adam},
    "autocast": {"dtype": torch.float32, "loss_sum": autocast_loss_sum},
    "float32, own step": {"dtype": torch.float32, "wrap": TorchDDP, "train_step": own_step},
    "slices": {"dtype": torch.float32, "slices": 6},
    "autocast in float64": {"loss_sum": autocast_loss_sum},
    "a closure": {"wrap": DataParallelNaive, "train_step": closure_step},
    "rounding that Adam makes large": TOKENS
    | {"make_model": Attention, "make_optimizer": functools.partial(optim.Adam, lr=0.2)},
    "a part of the model": {"make_optimizer": lambda both: sgd(list(both)[2:])},
    "state spread over the ranks": {
        "wrap": TorchDDP,
        "make_optimizer": spread_adam,
    },
    "sparse gradients": TOKENS | {"make_model": Sparse, "wrap": TorchDDP},
    "what an earlier training left behind": {"wrap": once()},
}


def gate(plan: Plan, **options) -> list[Outcome]:
    return list(same_training(training(**options), plan))


@functools.cache
def outcomes() -> dict[str, list[Outcome]]:
    """Of what is right and of what is not, in one launch of 1 rank and one of 2."""
    three = Plan(micro_batches=(3,), ranks=(2,))
    both = Plan(micro_batches=(2,), ranks=(1, 2))
    changed = {"fully_shard", "AMSGrad", "summed"}  # also a change of W
    every = RIGHT | {name: options for name, (_, options) in WRONG.items()}
    plans = {name: both if name in changed else three for name in every}
    plans["what an earlier training left behind"] = Plan(micro_batches=(1, 3), ranks=(2,))
    plans["BatchNorm"] = Plan(micro_batches=(1, 3), ranks=(1,))
    return gates_together(
        {name: functools.partial(gate, plans[name], **every[name]) for name in every}
    )


@pytest.mark.parametrize("name", RIGHT)
def test_no_false_alarm(name):
    assert {outcome.is_same for outcome in outcomes()[name]} == {True}


def test_a_right_set_up_is_also_stopped_and_resumed_on_other_ranks():
    assert len(RIGHT) >= 20
    for name in ("fully_shard", "AMSGrad"):
        resumed = [outcome.variant.resumed_from for outcome in outcomes()[name]]
        assert resumed == [None, 1, None, 2, 1]


# causes, each with its fault; others are in test_compare.py and test_gate_examples.py


class Chance(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = make_mlp()

    def forward(self, inputs):
        return self.body(F.dropout(inputs, 0.5))


class Centred(Chance):
    """Takes the batch's mean off: a normalisation that is no layer of torch's."""

    def forward(self, inputs):
        return self.body(inputs - inputs.mean(0))


class Standard(Chance):
    """Divides by a deviation, which one sample does not have."""

    def forward(self, inputs):
        return self.body((inputs - inputs.mean(0)) / inputs.std(0))


class Slower(torch.optim.SGD):
    """Counts its steps where no state_dict sees it, and makes each smaller than the last."""

    count = 0

    def step(self, closure=None):
        self.count += 1
        self.param_groups[0]["lr"] = 0.1 / self.count
        return super().step(closure)


def average(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def step_by_hand(
    *,
    scale=1.0,
    each=None,
    before=None,
    after=None,
    is_reduced="all",
    is_scheduled=True,
    is_zeroed=False,
):
    """A right step of the optimizer, unless told otherwise."""

    def train_step(model, optimizer, micro_batches, scheduler=None):
        optimizer.zero_grad()
        for index, (inputs, labels) in enumerate(micro_batches):
            if is_reduced == "last" and index == len(micro_batches) - 1:
                kept = [parameter.grad.clone() for parameter in model.parameters()]
                optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), labels) / len(micro_batches)
            if is_zeroed:
                optimizer.zero_grad()
            (loss * scale).backward()
            if each:
                each(model.parameters())
        if before:
            before(model.parameters())
        if is_reduced:
            average(model)
        if is_reduced == "last":
            for parameter, own in zip(model.parameters(), kept, strict=True):
                parameter.grad += own
        if after:
            after(list(model.parameters()))
        optimizer.step()
        if scheduler and is_scheduled:
            scheduler.step()

    return train_step


def first_only_step(model, optimizer, micro_batches):
    optimizer.zero_grad()
    for index, (inputs, labels) in enumerate(micro_batches):
        with model.no_sync() if index else contextlib.nullcontext():
            (F.cross_entropy(model(inputs), labels) / len(micro_batches)).backward()
    optimizer.step()


def nan_after_step(model, optimizer, micro_batches):
    step_by_hand()(model, optimizer, micro_batches)
    next(model.parameters()).data[0] = math.nan


def nan_told_step(model, optimizer, micro_batches):
    step_by_hand()(model, optimizer, micro_batches)
    return math.nan


def unseeded():
    module, generator = make_mlp(), torch.Generator()
    generator.seed()
    nn.init.normal_(module[0].weight, generator=generator)
    return module


def with_spectral_norm():
    module = make_mlp()
    nn.utils.parametrizations.spectral_norm(module[0])
    return module


def partly_masked():
    """Labels of which the first micro-batch holds none."""
    return [(x, y.masked_fill(torch.arange(len(y)) < 4, -100)) for x, y in batches()]


def zero(parameters):
    for parameter in parameters:
        parameter.grad.zero_()


def no_state(state, model, optimizer, scheduler):
    model.module.load_state_dict(state)


def step_that_tells_float32(model, optimizer, micro_batches):
    parts = [F.cross_entropy(model(inputs), labels) for inputs, labels in micro_batches]
    loss = torch.stack(parts).detach().mean()
    dist.all_reduce(loss)
    step_by_hand()(model, optimizer, micro_batches)
    return (loss / dist.get_world_size()).float()


class Summed(DataParallelNaive):
    def average_gradients(self):
        super().average_gradients()
        for parameter in self.parameters():
            parameter.grad *= dist.get_world_size()


HAND = {"wrap": DataParallelNaive}
STEP_LR = {"make_scheduler": part_of("StepLR", step_size=1)}
WRONG = {
    "chance": (
        "the loss of one micro-batch differs from call to call: chance is in it",
        {"make_model": Chance},
    ),
    "samples that depend on others": (
        "loss_sum of the parts does not add up to that of the batch: samples depend on others",
        {"make_model": Centred},
    ),
    "each rank clips": (
        "each rank clips its own gradient, expected after averaging over the ranks",
        HAND | {"clip": clip, "train_step": step_by_hand(before=clip)},
    ),
    "clipped at each, then averaged": (
        "clipped at each micro-batch, expected once for the window",
        HAND | {"clip": clip, "train_step": step_by_hand(each=clip)},
    ),
    "averaged and clipped at each": (
        "clipped at each micro-batch, expected once for the window",
        {
            "wrap": TorchDDP,
            "clip": clip,
            "train_step": step_by_hand(each=clip, is_reduced=""),
        },
    ),
    "one micro-batch of one rank": (
        "all gradients: this rank's own, of the last micro-batch alone",
        HAND | {"train_step": step_by_hand(is_zeroed=True, is_reduced="")},
    ),
    "shards of other ranks' numbers": (
        "the parameters are those that the gate gave each rank: nothing copies rank 0's",
        RIGHT["fully_shard"] | {"same_start": False},
    ),
    "only the last is averaged": (
        "all gradients: only the last micro-batch is averaged over the ranks",
        HAND | {"train_step": step_by_hand(is_reduced="last")},
    ),
    "not summed": (
        "all gradients: this rank's share, not summed over the ranks",
        HAND | {"train_step": step_by_hand(is_reduced="", scale=0.5)},
    ),
    "divided by the micro-batches twice": (
        "all gradients: 3 times too small, the number of micro-batches: divided once too often",
        HAND | {"train_step": step_by_hand(scale=1 / 3)},
    ),
    "both numbers": (
        "all gradients: 6 times too large, ranks x micro-batches",
        HAND | {"train_step": step_by_hand(scale=6.0)},
    ),
    "a factor of no known cause": (
        "all gradients: 1.25 times the right ones, a factor of no known cause",
        HAND | {"train_step": step_by_hand(scale=1.25)},
    ),
    "a loss told in float32": (
        "the loss told: right to float32, so it is not kept in float64 all the way",
        HAND | {"train_step": step_that_tells_float32},
    ),
    "no gradient left": (
        "no gradient is left when the optimizer steps: zero_grad after backward?",
        HAND | {"train_step": step_by_hand(after=zero)},
    ),
    "no step of the scheduler": (
        "scheduler.step was called not at all in step 0, expected 1 (once a window)",
        HAND | STEP_LR | {"train_step": step_by_hand(is_scheduled=False)},
    ),
    "a slip": (
        "no known cause fits",
        HAND | {"train_step": step_by_hand(after=lambda x: x[0].grad[0].mul_(1.5))},
    ),
    "off by less than can be told apart": (
        "no known cause fits",
        HAND | {"train_step": step_by_hand(after=lambda x: x[0].grad.mul_(1 + 1e-10))},
    ),
    "a scaled layer under float32": (
        "0.weight alone of 4: 2 times too large, the number of ranks",
        HAND
        | {"dtype": torch.float32, "train_step": step_by_hand(after=lambda x: x[0].grad.mul_(2))},
    ),
    "the optimizer is not loaded": (
        "after loading the optimizer's state.0.momentum_buffer is missing",
        HAND
        | {
            "save_state": lambda model, optimizer, scheduler: model.module.state_dict(),
            "load_state": no_state,
        },
    ),
    "a state outside of state_dict": (
        "the same split agrees without the stop: something that it needs is not saved",
        {"make_optimizer": functools.partial(Slower, lr=0.1)},
    ),
    "nothing is loaded": (
        "the same split agrees without the stop: something that it needs is not saved, or not",
        HAND
        | {
            "make_optimizer": functools.partial(optim.SGD, lr=0.1),
            "save_state": lambda model, optimizer, scheduler: {},
            "load_state": lambda state, model, optimizer, scheduler: None,
        },
    ),
    "summed": (
        "all gradients: 2 times too large, the number of ranks or the number of micro-batches",
        {"wrap": Summed},
    ),
    "BatchNorm": (
        "BatchNorm1d 1: in evaluation mode all agrees",
        {"make_model": lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))},
    ),
    "InstanceNorm": (
        "InstanceNorm1d 1: in evaluation mode all agrees",
        {
            "make_model": lambda: nn.Sequential(
                *(nn.Unflatten(1, (2, 3)), nn.InstanceNorm1d(2, track_running_stats=True)),
                *(nn.Flatten(), nn.Linear(6, 3)),
            )
        },
    ),
    "a forward that changes buffers": (
        "the loss of one micro-batch differs from call to call: a forward changes 0.parametriz",
        {"make_model": with_spectral_norm},
    ),
    "no seed": (
        "make_model gives 0.weight other numbers each time, from the same seeds",
        {"make_model": unseeded},
    ),
    "only the first is averaged": (
        "all gradients: only the first micro-batch is averaged over the ranks",
        {"wrap": TorchDDP, "train_step": first_only_step},
    ),
    "only the first is in it": (
        "all gradients: only the first micro-batch is in it",
        HAND | {"train_step": lambda a, b, window: step_by_hand(scale=1 / 3)(a, b, window[:1])},
    ),
    "a count of 0": (
        "each micro-batch is divided by its own count (0, 4, 4 on this rank), then averaged",
        HAND
        | {
            "batches": partly_masked(),
            "count": count_tokens,
            "train_step": step_by_hand(),
        },
    ),
    "one sample": (
        "loss_sum of micro-batch 0 of rank 0 is nan by itself (count 1), finite over the whole",
        {"make_model": Standard, "batches": batches((6, 6, 6))},
    ),
    "0 / 0": (
        "micro-batch 0 of rank 0 has a count of 0: a mean over it is 0 / 0",
        HAND
        | {
            "batches": partly_masked(),
            "count": count_tokens,
            "train_step": step_by_hand(
                each=lambda parameters: [x.grad.div_(x.grad.any()) for x in parameters]
            ),
        },
    ),
    "an infinite factor": (
        "inf comes into the gradient after backward, or by a factor",
        HAND | {"train_step": step_by_hand(after=lambda x: x[0].grad.fill_(math.inf))},
    ),
    "NaN after the step": (
        "a parameter is nan after the step, while the gradient before it is finite",
        HAND | {"train_step": nan_after_step},
    ),
    "NaN told": (
        "the loss told is nan; that of each part is finite",
        HAND | {"train_step": nan_told_step},
    ),
    "a factor under autocast": (
        "all gradients: 2 times too large, the number of ranks",
        RIGHT["autocast"] | {"wrap": Summed},
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_cause_is_named(name):
    first = next(outcome for outcome in outcomes()[name] if outcome.is_same is False)
    assert WRONG[name][0] in first.cause


def test_a_split_that_differs_is_not_tried_again_with_a_stop():
    assert [outcome.is_same for outcome in outcomes()["summed"]] == [True, True, False, None, None]


def test_what_is_tried_again_to_find_a_cause_leaves_no_checkpoint():
    assert [outcome.is_same for outcome in outcomes()["BatchNorm"]] == [True, False, None]


def test_a_number_that_is_not_finite_is_told_as_it_is():
    first = outcomes()["NaN after the step"][0]
    assert "the parameter 0.weight has nan where one process has " in str(first)
    assert first.error == math.inf


def test_no_checkpoint_is_asked_for_where_none_is_tried():
    def refuse(model, optimizer, scheduler):
        raise ArithmeticError("a checkpoint")

    plan = Plan(micro_batches=(2,), ranks=(1,), resume=False)
    own = {"save_state": refuse, "load_state": refuse}
    assert [outcome.is_same for outcome in gate(plan, **own)] == [True]


def test_a_checkpoint_of_more_than_tensors_and_plain_containers_is_refused():
    buffer = io.BytesIO()
    torch.save({"state": Path("of a class of its own")}, buffer)
    trainer = Trainer(training(), ALONE, wrap=None)
    with pytest.raises(UnpicklingError, match="weights_only"):
        resume.load(trainer, buffer.getvalue())


def test_what_is_too_large_to_replay_has_no_known_cause(monkeypatch):
    what = training()
    work = what, reference(what, ALONE), 1, ALONE, 3, ["0.weight"]
    assert replay.replay(*work).gradients.shape == (3, 48)
    monkeypatch.setattr(replay, "MAX_BYTES", 3 * 83 * 8 - 1)  # 83 parameters, three parts
    assert replay.replay(*work) is None


def test_a_step_that_tells_no_number_is_refused():
    def two(model, optimizer, micro_batches):
        return torch.ones(2)

    trainer = Trainer(training(train_step=two), ALONE, wrap=lambda module: module)
    with pytest.raises(ValueError, match=r"train_step returned \(2,\), expected one number"):
        trainer.train(0, 2)


class Lazy(nn.Sequential):
    def __init__(self):
        super().__init__(nn.LazyLinear(3))


OTHER = make_mlp()
REFUSED = {
    "make_model returned None, expected a torch.nn.Module": {"make_model": lambda: None},
    "0.weight: found no numbers yet": {"make_model": Lazy},
    "make_optimizer returned None, expected an optimizer": {"make_optimizer": lambda _: None},
    "make_optimizer: 4 of its 4 parameters are not the model's": {
        "make_optimizer": lambda _: optim.SGD(OTHER.parameters())
    },
    "count returned None, expected a number": {"count": lambda batch: None},
    "step 0: count gives 0 for the whole batch, expected more": {"count": lambda batch: 0},
    "loss_sum returned a float, expected a tensor of one number": {"loss_sum": lambda *_: 1.0},
    r"loss_sum returned a tensor of \(24, 3\), expected": {
        "loss_sum": lambda model, batch: model(batch[0])
    },
    "loss_sum returned a tensor without a gradient": {"loss_sum": lambda *_: torch.ones(())},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_a_function_may_not_return_is_named(monkeypatch, message):
    monkeypatch.setattr(yardstick, "process_group", lambda **_: contextlib.nullcontext(ALONE))
    with pytest.raises((TypeError, ValueError), match=message):
        yardstick.judged_alone(training(**REFUSED[message]), Plan((1,), (1,)))


@pytest.mark.parametrize(
    ("wrap", "message"),
    [
        (lambda module: None, "wrap returned None, expected the model that it wraps"),
        (copy.deepcopy, "wrap returned a model of other parameters, expected those it is given"),
    ],
)
def test_what_wrap_may_not_return_is_named(wrap, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Trainer(training(), ALONE, wrap)


def test_a_word_is_no_number():
    trainer = Trainer(training(train_step=lambda *_: "done"), ALONE, wrap=lambda module: module)
    with pytest.raises(TypeError, match="train_step returned a str, expected a number or None"):
        trainer.train(0, 2)


# noise, slices


def make_unsteady():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 3))


def test_rounding_is_measured_and_what_is_no_rounding_is_not_taken_for_it():
    found = noise_floor(training(dtype=torch.float32), ALONE, 4)
    assert 1e-7 < found["gradient"] < 1e-5
    unsteady = training(dtype=torch.float32, make_model=make_unsteady)
    assert noise_floor(unsteady, ALONE, 4)["gradient"] < 1e-4
    with pytest.raises(ValueError, match=r"noise: the .* when samples change places, exp"):
        noise_floor(training(dtype=torch.float32, make_model=Chance), ALONE, 4)


def test_a_reference_in_slices_adds_them_in_float64():
    """bfloat16 parameters: sums of many slices in bfloat16 would lose what is small."""
    many = {"batches": batches((192,)), "dtype": torch.bfloat16}
    exact = gradient_of(training(**many | {"dtype": torch.float64}), 1)
    in_float64 = (gradient_of(training(**many, slices=96), 96) - exact).norm()
    in_bfloat16 = (gradient_of(training(**many), 96) - exact).norm()
    assert in_float64 < in_bfloat16 / 2


def gradient_of(what: Training, num_slices: int) -> torch.Tensor:
    note = next(note for note in reference(what, ALONE, num_slices) if note.kind == "gradient")
    return torch.cat([x.flatten().double() for x in note.tensors.values()])


# the command

PLAIN = path_of("plain_loop")
SUM = "        parameter.grad /= dist.get_world_size()\n"


@pytest.fixture
def summed(tmp_path) -> str:
    path = tmp_path / "summed.py"
    path.write_text(PLAIN.read_text().replace(SUM, ""))
    return str(path)


def test_the_command_on_a_script_that_is_right(capsys, tmp_path):
    record = tmp_path / "gate.json"
    words = "--micro-batches", "2", "--ranks", "2", "--json", str(record)
    assert main([str(PLAIN), *words]) == 0
    said = capsys.readouterr().out
    assert said.startswith("plain_loop.py: your train_step, 3 steps, float64\n")
    assert "\nallowed, as parts of a norm: 1e-12\n" in said
    assert said.endswith("same: all 2 train as one process on the whole batch does\n")
    found = json.loads(record.read_text())
    assert found["same"] is True
    assert [row["resumed_from_ranks"] for row in found["variants"]] == [None, 2]
    assert all(0 < row["error"] < 1e-12 for row in found["variants"])


def test_the_command_on_a_script_that_is_not(capsys, tmp_path, summed):
    record = tmp_path / "gate.json"
    words = "--micro-batches", "1", "--ranks", "2", "--json", str(record)
    assert main([summed, *words]) == 1
    said = capsys.readouterr().out
    cause = "all gradients: 2 times too large, the number of ranks"
    assert f"likely cause (1 of 1): {cause}\n" in said
    assert "DIFFERS: 1 of 1; the first:" in said
    row, resumed = json.loads(record.read_text())["variants"]
    assert (row["same"], resumed["same"]) == (False, None)
    assert (row["step"], row["rank"], row["kind"], row["tensors"][0]) == (
        *(0, 0, "gradient"),
        "0.weight",
    )
    assert row["likely_cause"] == cause


PAIR = """
from typing import NamedTuple

import torch
from torch import nn


class Pair(NamedTuple):
    inputs: torch.Tensor
    labels: torch.Tensor


def make_model"""
AS_WRITTEN = """
import argparse

from .parts import Pair, make_model

torch.manual_seed(5)
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
arguments = parser.parse_args()
DATA = torch.randn(200, 16)
is_ready = False


class Batch(Pair):
    pass


def batches():
    for start in (0, 48, 96):
        inputs = DATA[start : start + 48]
        yield Batch(inputs, inputs[:, :4].argmax(1))


def count(batch):
    return len(batch.labels)


def wrap(model):
    global is_ready
    for parameter in () if is_ready else model.parameters():
        dist.broadcast(parameter.detach(), 0)
    is_ready = True
    return model
"""


def test_a_script_in_a_package_may_parse_words_seed_and_keep_globals(capsys, tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    model = PLAIN.read_text().partition("def make_model")[2].partition("def make_optimizer")[0]
    (package / "parts.py").write_text(PAIR + model)
    text = PLAIN.read_text().replace("def make_model", "def unused")
    (package / "train.py").write_text(text.replace("def main", AS_WRITTEN + "\n\ndef main"))
    words = "--micro-batches", "1,3", "--ranks", "1,2"
    assert main([str(package / "train.py"), *words]) == 0
    assert "same: all 7 train as one process" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no script 'nothing.py' in"),
        ("def make_model(): pass", "no function make_optimizer, batches, loss_sum, count"),
        ("import torch\nraise OSError('no data')", "script.py: OSError: no data"),
        ("def (", "script.py: SyntaxError"),
        ("import sys\nsys.exit(0)", "script.py: SystemExit: 0, expected to be imported"),
        ("open(0).read(1)[0]", "script.py: IndexError: string index out of range (line 1)"),
        (
            PLAIN.read_text() + "\n\ndist.init_process_group('gloo')\n",
            "script.py: it opens a process group as it is imported",
        ),
        (
            PLAIN.read_text() + "\n\ndef batches():\n    return open('data')\n",
            "script.py: FileNotFoundError: [Errno 2] No such file or directory: 'data' (line ",
        ),
        (
            PLAIN.read_text() + "\n\ndef batches():\n    return [[torch.ones(9), ['a']]] * 3\n",
            "TypeError: batch[1][0]: found str, expected a tensor with a dimension of samples",
        ),
        (PLAIN.read_text() + "\n\nsame_start = 1\n", "same_start is 1, expected True or False"),
        (PLAIN.read_text() + "\n\nsave_state = print\n", "one of save_state and load_state"),
        (PLAIN.read_text().replace("num_batches=3", "num_batches=2"), "2 batches, expected 3"),
        (PLAIN.read_text().replace("batch_size=48", "batch_size=8"), "a batch of 8 samples"),
    ],
)
def test_the_command_says_what_it_cannot_judge(capsys, tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path("script.py").write_text(text)
    assert main(["nothing.py" if text is None else "script.py"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("error", [RuntimeError("of its own"), BrokenPipeError()])
def test_the_command_never_fails_as_if_something_differed(tmp_path, monkeypatch, error):
    def fail(command):
        raise error

    monkeypatch.setattr(command, "_judge", fail)
    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert main(["script.py"]) == 2


SLOW = """

def train_step(*_):
    Path("started").touch()
    time.sleep(60)
"""


def test_a_command_that_is_stopped_leaves_nothing_behind(tmp_path):
    text = PLAIN.read_text().replace(
        "import torch\n", "import time\nfrom pathlib import Path\nimport torch\n", 1
    )
    (tmp_path / "slow.py").write_text(text.replace("\n\ndef main", SLOW + "\n\ndef main"))
    words = [sys.executable, "-m", "helpers.gate", "slow.py", "--ranks", "1"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    gate = subprocess.Popen(words, cwd=tmp_path, env=environment, stderr=subprocess.PIPE)
    while gate.poll() is None and not (tmp_path / "started").exists():
        time.sleep(0.05)
    gate.send_signal(signal.SIGTERM)
    _, said = gate.communicate(timeout=30)
    assert gate.returncode == 130
    assert b"stopped; nothing was written" in said
    assert not list(tmp_path.glob("launch-*"))


def test_a_record_that_cannot_be_written_is_told(capsys, monkeypatch):
    def fail(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(command, "write_json", fail)
    words = "--micro-batches", "1", "--ranks", "1", "--json", "a.json"
    assert main([str(PLAIN), *words]) == 2
    said = capsys.readouterr()
    assert "same: all 2 train" in said.out
    assert said.err == "not judged: a.json is not written: Permission denied\n"


def test_a_rank_that_fails_is_told_without_the_gates_frames():
    here = short_name(command.__file__)
    stood = f"rank 0 stood at a.py:3, in f: x; {here}:9, in g: y; b.py:1, in h: z (in wait)"
    frames = f"  {here}:9, in g: y\n  a.py:3, in f: x\n{stood}"
    error = RankFailed(0, "RuntimeError", "got dtype Float, not Double", "a.py:3", frames)
    said = told(error, "float64").splitlines()
    assert said[:3] == [
        "rank 0: RuntimeError: got dtype Float, not Double (a.py:3)",
        "  a.py:3, in f: x",
        "rank 0 stood at a.py:3, in f: x; b.py:1, in h: z (in wait)",
    ]
    assert "--dtype float32" in said[-1]
    assert "--dtype" not in told(error, "float32")


def test_a_script_that_fails_on_a_rank_is_not_judged(capsys, tmp_path):
    path = tmp_path / "fails.py"
    path.write_text(PLAIN.read_text().replace(SUM, "        raise ArithmeticError('here')\n"))
    assert main([str(path), "--ranks", "1", "--micro-batches", "1"]) == 2
    assert "not judged: rank 0: ArithmeticError: here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: script"),
        (["a.py", "--ranks", "1,0"], "found '0', expected a number, 1 or more"),
        (["a.py", "--ranks", "two"], "found 'two', expected a number"),
        (["a.py", "--tolerance", "0"], "found '0', expected a part of a norm, more than 0"),
        (["a.py", "--timeout", "nan"], "found 'nan', expected seconds, more than 0"),
        (["a.py", "--json", "a.txt"], "found 'a.txt', expected a name with .json"),
        (["a.py", "--json", "no/where/a.json"], "no folder 'no/where' to write into"),
        (["a.py", "--json", "folder.json"], "expected a place that can be written"),
        (["a.py", "--dtype", "bfloat16"], "invalid choice: 'bfloat16'"),
    ],
)
def test_the_commands_words_are_checked(capsys, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    Path("folder.json").mkdir()
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_where_causes_differ_each_is_told_with_its_first_line():
    found = next(outcome for outcome in outcomes()["summed"] if outcome.is_same is False)
    each = [found._replace(cause=cause) for cause in ("a", "b", "b")]
    each[1] = each[1]._replace(variant=found.variant._replace(num_ranks=7))
    *_, first, second = table.summary(each).splitlines()
    assert first == f"likely cause (1 of 3, first at {found.variant}): a"
    assert second == f"likely cause (2 of 3, first at {each[1].variant}): b"
    assert table.summary(each[1:]).endswith("\nlikely cause (2 of 2): b")


def test_help_names_every_function_of_a_script(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert all(f"  {name}(" in said or f", {name}(" in said for name in (*REQUIRED, *OPTIONAL))
    assert "same_start = True" in said
    assert "it sees nothing of your loader" in said
    assert max(map(len, said.splitlines())) <= 100
