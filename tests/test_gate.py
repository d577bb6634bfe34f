"""The gate on set-ups that are right, and on every part that it names a cause of."""

import contextlib
import copy
import functools
import io
import itertools
import math
from pathlib import Path
from pickle import UnpicklingError

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from gates_together import gates_together
from torch import nn

from helpers.compare import replay, resume, yardstick
from helpers.compare.fit import times
from helpers.compare.noise import noise_floor
from helpers.compare.outcome import Outcome, Plan
from helpers.compare.same_training import same_training
from helpers.compare.setup import Training
from helpers.compare.trainer import Trainer, reference
from helpers.data_parallel import DataParallelNaive, DistributedDataParallel
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


def test_a_factor_near_one_tells_how_near():
    assert times(0.93634) == "0.9363 times"
    assert times(1 - 6e-8) == "1 - 6e-08 times"
    assert times(1 + 2e-9) == "1 + 2e-09 times"


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
