"""Errors are relative to the reference and named; replicas that differ are told apart."""

import contextlib
import functools
import math

import pytest
import torch
import torch.distributed as dist
from gates_together import gates_together
from torch import nn

from helpers import problems
from helpers.compare import (
    assert_replicas_equal,
    assert_same_training,
    gradients,
    relative_error,
)
from helpers.data_parallel import DataParallelNaive
from helpers.launch import RankFailed, run_function
from helpers.process_group import process_group


def test_relative_error_of_tensors_lists_and_dicts():
    b = torch.tensor([3.0, 4.0])
    assert relative_error(b, b) == 0
    assert relative_error(b + torch.tensor([0.0, 0.5]), b) == pytest.approx(0.1)
    assert relative_error([b, b + 1], [b, b]) == pytest.approx(math.sqrt(2 / 50))
    assert relative_error({"x": [b * 2]}, {"x": [b]}).worst == "x[0]"
    assert relative_error(2 * b, b).worst is None
    assert relative_error(torch.tensor([1]), torch.tensor([2])) == 0.5


def test_complex_numbers_and_large_integers_are_compared_whole():
    one = torch.ones(1, dtype=torch.complex128)
    assert relative_error(one + 5j, one) == 5
    assert relative_error((one * 1j).conj(), -one * 1j) == 0
    assert relative_error(torch.tensor([2**60]), torch.tensor([2**60 + 1])) == 2.0**-60


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ({"w": None}, {"w": None}, "nothing to compare: found 1 times None"),
        ([], [], "nothing to compare: found 0 times None"),
        (torch.eye(2).to_sparse(), torch.eye(2).to_sparse(), "found a torch.sparse_coo tensor"),
        ({"w": torch.ones(2, device="meta")}, {"w": torch.ones(2)}, "w: found a meta tensor"),
    ],
)
def test_what_has_no_numbers_to_compare_is_refused(a, b, message):
    with pytest.raises(ValueError, match=message):
        relative_error(a, b)


def test_relative_error_names_the_worst():
    b = {"small": torch.ones(1), "large": torch.ones(100)}
    error = relative_error({"small": torch.ones(1) * 1.5, "large": b["large"] + 0.01}, b)
    assert error.worst == "small"
    assert str(error) == "5.1e-02, worst in small"


def test_zeros_nan_and_infinity_are_below_no_bound():
    zero, one = torch.zeros(2), torch.ones(2)
    assert relative_error(zero, zero) == 0
    assert relative_error(one, zero) == math.inf
    error = relative_error([one, one * math.nan], [one, one])
    assert math.isnan(error)
    assert error.worst == "[1]"
    assert not error < 1e300
    assert relative_error([one * math.inf], [one]) == math.inf


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ({"w": torch.zeros(2)}, {"w": torch.zeros(3)}, r"w: found \(\(2,\), torch.float32\)"),
        ([torch.zeros(2)], [torch.zeros(2).double()], r"\[0\]: found .*float64"),
        ({"w": None}, {"w": torch.zeros(3)}, "w: found None"),
        ({"w": torch.zeros(1)}, {"v": torch.zeros(1)}, "only one of the two has v, w"),
        ([torch.zeros(1)], [], r"only one of the two has \[0\]"),
    ],
)
def test_what_is_not_alike_is_named(a, b, message):
    with pytest.raises(ValueError, match=message):
        relative_error(a, b)


def test_gradients_are_copies_by_name():
    model = problems.make_mlp((64, 10))
    assert gradients(model) == {"0.weight": None, "0.bias": None}
    model(torch.ones(1, 64)).sum().backward()
    found = gradients(model)
    model.zero_grad(set_to_none=False)
    assert found["0.bias"].abs().max() == 1
    assert relative_error(found, found) == 0


def on_ranks(change: str):
    """Change one thing on the last rank and return what every rank is told."""
    with process_group(timeout_s=10) as ranks:
        model = problems.make_conv(norm="batch")
        model.note = nn.Parameter(torch.tensor([math.nan, 1.0]))
        kind = {"imaginary": torch.ones(1) * (1 + 0j), "sparse": torch.eye(2).to_sparse()}
        model.register_buffer("extra", kind.get(change, torch.tensor([2**60])))
        with torch.no_grad():
            if ranks.rank == ranks.world_size - 1:
                if change == "weight":
                    model[1].weight[0, 0, 0, 0] += 0.5
                    model[1].bias += 0.25
                elif change == "nan":
                    model[1].weight[0] = math.nan
                elif change == "imaginary":
                    model.extra += 1j
                elif change == "large":
                    model.extra += 1
                elif change == "buffer":
                    model[2].num_batches_tracked += 3
                elif change == "shape":
                    model[8] = nn.Linear(512, 11)
        told = []
        for buffers in (True, False):
            try:
                assert_replicas_equal(model, buffers=buffers)
                told.append(None)
            except (AssertionError, ValueError) as error:
                told.append(str(error))
        return told


def every_change(changes: list[str]) -> dict[str, list]:
    return {change: on_ranks(change) for change in changes}


REPLICAS = [
    ("nothing", 1, None),
    ("weight", 1, None),
    ("nothing", 4, None),
    ("weight", 4, "1.weight differs between ranks: rank 3 is up to 5.0e-01 off rank 0 (2 of"),
    ("nan", 2, "1.weight differs between ranks: rank 1 is up to inf off rank 0 (1 of"),
    ("shape", 2, "rank 1 has other tensors than rank 0: 8.weight (11, 512) torch.float32"),
    ("imaginary", 2, "extra differs between ranks: rank 1 is up to 1.0e+00 off rank 0 (1 of"),
    ("large", 2, "extra differs between ranks: rank 1 is up to 1.0e+00 off rank 0 (1 of"),
    ("sparse", 2, "extra: found a torch.sparse_coo tensor, expected a dense one"),
    ("buffer", 2, "2.num_batches_tracked differs between ranks: rank 1 is up to 3.0e+00"),
]


@functools.cache
def replicas(world_size: int) -> list[dict[str, list]]:
    """Of each rank, in one launch."""
    changes = [change for change, ranks, _ in REPLICAS if ranks == world_size]
    return run_function(every_change, changes, nproc_per_node=world_size)


@pytest.mark.parametrize(("change", "world_size", "message"), REPLICAS)
def test_replicas(change, world_size, message):
    for with_buffers, without in (told[change] for told in replicas(world_size)):
        if message is None:
            assert with_buffers is None
        else:
            assert with_buffers.startswith(message)
        in_buffers = change in ("buffer", "imaginary", "large", "sparse")
        assert (without is None) == (message is None or in_buffers)


# the equality gate

DIGITS = problems.classification_loss_sum, problems.count_samples


def digits_batches(sizes=(23, 24, 22)):
    images, labels = problems.digits().train
    return [(images[100 * i :][:size], labels[100 * i :][:size]) for i, size in enumerate(sizes)]


def make_mlp():
    return problems.make_mlp((64, 12, 10))


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def gate(make_model=make_mlp, make_optimizer=sgd, loss=DIGITS, batches=None, **options):
    """Two launches, unless asked for more."""
    options = {"micro_batches": (2,), "ranks": (2,), **options}
    batches = batches or digits_batches()
    return assert_same_training(make_model, make_optimizer, loss[0], batches, loss[1], **options)


def test_the_gate_is_green_for_every_way_to_split_a_batch():
    assert 0 < gate(micro_batches=(1, 2, 4), ranks=(1, 2, 3, 4)) < 1e-14


def test_the_gate_takes_closures_dicts_tokens_and_adam():
    width = 16

    def make():
        return problems.make_gpt(width=width, depth=1, heads=2, context=24, tied=True)

    def tokens_of(batch):
        return batch["inputs"], batch["targets"]

    generator = torch.Generator().manual_seed(0)
    text = problems.encode(problems.library_text(20_000))
    lines = [problems.lines_batch(text, 9, 24, generator) for _ in range(2)]
    found = gate(
        make,
        torch.optim.AdamW,
        (
            lambda model, batch: problems.token_loss_sum(model, tokens_of(batch)),
            lambda batch: problems.count_tokens(tokens_of(batch)),
        ),
        ({"inputs": inputs, "targets": targets} for inputs, targets in lines),  # used up once
        ranks=(3,),
        steps=2,
    )
    assert found < 1e-12


class Odd(nn.Module):
    """Parameters that are frozen, unused and tied; buffers of each kind, also infinite and NaN."""

    def __init__(self):
        super().__init__()
        self.body, self.frozen = make_mlp(), nn.Parameter(torch.ones(64), requires_grad=False)
        self.unused, self.tied = nn.Parameter(torch.ones(3)), self.body[0].bias
        self.register_buffer("mask", torch.tensor([0.0, -math.inf]))
        self.register_buffer("missing", torch.tensor([math.nan, 1.0]))
        self.register_buffer("on", torch.tensor(True))
        self.register_buffer("calls", torch.tensor(3))

    def forward(self, inputs):
        return self.body(inputs * self.frozen) * self.on


class NoBroadcast(DataParallelNaive):
    def __init__(self, module):
        nn.Module.__init__(self)
        self.module, self.process_group = module, None


class ParametersOnly(NoBroadcast):
    def __init__(self, module):
        super().__init__(module)
        for parameter in module.parameters():
            dist.broadcast(parameter.detach(), 0)


class NotAveraged(DataParallelNaive):
    def average_gradients(self):
        pass


class SumForMean(DataParallelNaive):
    def average_gradients(self):
        super().average_gradients()
        for parameter in self.parameters():
            parameter.grad *= dist.get_world_size()


class WithoutTheLast(DataParallelNaive):
    def average_gradients(self):
        own = self.module[2].bias.grad.clone()
        super().average_gradients()
        self.module[2].bias.grad = own


class OnlyTheFirstStep(DataParallelNaive):
    is_done = False

    def average_gradients(self):
        if not self.is_done:
            super().average_gradients()
        self.is_done = True


class ZerosForNone(DataParallelNaive):
    def average_gradients(self):
        for parameter in self.parameters():
            if parameter.grad is None and parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)
        super().average_gradients()


class Both(DataParallelNaive):
    """Skips nothing: backward leaves each rank its own, until average_gradients."""

    no_sync = contextlib.nullcontext


class NanOnTheLast(DataParallelNaive):
    """A NaN that only one rank has, beside one that all have and an infinity that all have."""

    def __init__(self, module):
        super().__init__(module)
        if dist.get_rank() == 1:
            module.calls_mean.fill_(math.nan)


class WithMean(Odd):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls_mean", torch.ones(2))


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.phase = nn.Parameter(torch.ones(2, dtype=torch.complex64))


class OnRankZero(torch.optim.SGD):
    """Steps on rank 0 only, as where a script does everything there."""

    def step(self, closure=None):
        return super().step(closure) if dist.get_rank() == 0 else None


class Slip(torch.optim.SGD):
    """Moves the parameters a little off, on the last rank, after the second step."""

    count = 0

    def step(self, closure=None):
        super().step(closure)
        self.count += 1
        if self.count == 2 and dist.get_rank():
            self.param_groups[0]["params"][1].data[0] += 1e-6


def with_dropout():
    first, *others = make_mlp()
    return nn.Sequential(first, nn.Dropout(0.1), *others)


def a_mean(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


START = "2 ranks x 2 micro-batches differ from one process on the whole batch: before the first "
FIRST = "2 ranks x 2 micro-batches differ from one process on the whole batch: step 0, rank "
ALONE = "1 rank x 2 micro-batches differ from one process on the whole batch: step 0, rank 0: the "


RED = {
    "no broadcast": (START + "step, rank 1: the parameter 0.weight is ", {"wrap": NoBroadcast}),
    "no broadcast of buffers": (
        START + "step, rank 1: the buffer mask is inf off",
        {"wrap": ParametersOnly, "make_model": Odd},
    ),
    "a NaN on the last rank": (
        START + "step, rank 1: the buffer calls_mean has nan where one process has 1, ",
        {"wrap": NanOnTheLast, "make_model": WithMean},
    ),
    "not averaged": (FIRST + "0: the gradient 0.weight is ", {"wrap": NotAveraged}),
    "sum for mean": (FIRST + "0: the gradient 0.weight is 1.0e+00 off", {"wrap": SumForMean}),
    "without the last": (FIRST + "0: the gradient 2.bias is ", {"wrap": WithoutTheLast}),
    "zeros for None": (
        FIRST + "0: the gradient unused is None in one pro",
        {"wrap": ZerosForNone, "make_model": Odd},
    ),
    "only the first step": (
        START.split(":")[0] + ": step 1, rank 0: the gradient ",
        {"wrap": OnlyTheFirstStep},
    ),
    "steps on rank 0": (FIRST + "1: the parameter 0.weight is ", {"make_optimizer": OnRankZero}),
    "a slip in step 1": (
        START.split(":")[0] + ": step 1, rank 1: the parameter 0.bias is ",
        {"make_optimizer": Slip},
    ),
    "means": (FIRST + "0: the loss is 3.0e+00 off", {"loss": (a_mean, DIGITS[1])}),
    "a mean of means": (FIRST + "0: the loss is ", {"loss": (a_mean, lambda batch: 1)}),
    "dropout": (FIRST + "0: the loss is ", {"make_model": with_dropout}),
    "means on one rank": (ALONE + "loss is ", {"loss": (a_mean, DIGITS[1]), "ranks": (1,)}),
    "batch norm": (FIRST, {"make_model": lambda: problems.make_conv(norm="batch")}),
}
OWN = "all gradients: this rank's own, not averaged over the ranks"
CAUSES = {
    "no broadcast": "the parameters are those that the gate gave each rank",
    "no broadcast of buffers": "the buffers are those that the gate gave each rank",
    "a NaN on the last rank": "a buffer is nan on this rank before any step, from make_model",
    "not averaged": OWN,
    "sum for mean": "all gradients: 2 times too large, the number of ranks or the number of mic",
    "without the last": "2.bias alone of 4: this rank's own, not averaged over the ranks",
    "zeros for None": "zeros for unused, which has no gradient (None) in one process",
    "only the first step": OWN,
    "steps on rank 0": (
        "the optimizer moved no parameter on this rank; rank 0 agrees here: the replicas are apart"
    ),
    "a slip in step 1": "no known cause fits; gradients agree",
    "means": "loss_sum returns a mean, expected a sum",
    "a mean of means": "count gives 4 over the parts, 1 over the whole batch",
    "dropout": "Dropout 1: in evaluation mode all agrees",
    "means on one rank": "loss_sum returns a mean, expected a sum",
    "batch norm": "BatchNorm2d 2, BatchNorm2d 5: in evaluation mode all agrees",
}
GREEN = {
    "odd": (0, 1e-14, {"make_model": Odd}),
    "torch's own": (
        0, 1e-14, {"wrap": nn.parallel.DistributedDataParallel, "micro_batches": (1, 3)}
    ),
    "no_sync that skips nothing": (0, 1e-14, {"wrap": Both}),
    "float32": (1e-12, 1e-5, {"dtype": torch.float32}),
}  # fmt: skip


@functools.cache
def outcomes() -> dict[str, float | AssertionError]:
    every = (RED | GREEN).items()
    return gates_together(
        {name: functools.partial(gate, **options) for name, (*_, options) in every}
    )


@pytest.mark.parametrize("name", RED)
def test_the_gate_is_red(name):
    error, (message, _) = outcomes()[name], RED[name]
    assert isinstance(error, AssertionError)
    assert str(error).startswith(message)
    assert "allowed 1e-12" in str(error)
    assert f"\nlikely cause: {CAUSES[name]}" in str(error)


@pytest.mark.parametrize("name", GREEN)
def test_the_gate_is_green_also_for(name):
    least, most, _ = GREEN[name]
    assert least <= outcomes()[name] < most


def test_a_gate_alone_is_red_as_among_others():
    with pytest.raises(AssertionError) as caught:
        gate(wrap=NotAveraged)
    assert str(caught.value) == str(outcomes()["not averaged"])


@pytest.mark.parametrize(
    ("message", "options"),
    [
        (
            "found torch.bfloat16, expected torch.float64 or torch.float32",
            {"dtype": torch.bfloat16},
        ),
        ("2 batches, expected 3, one a step", {"batches": digits_batches((9, 9))}),
        ("steps: found 0, expected a whole number, 1 or more", {"steps": 0}),
        ("steps: found -1, expected", {"steps": -1}),
        (r"ranks: found \(\), expected whole numbers, 1 or more, at least one", {"ranks": ()}),
        (r"ranks: found \(2, True\)", {"ranks": (2, True)}),
        (r"micro_batches: found \(\), expected whole", {"micro_batches": ()}),
        (r"micro_batches: found \(0,\), expected", {"micro_batches": (0,)}),
        ("micro_batches: found 2, expected", {"micro_batches": 2}),
        ("a batch of 3 samples, expected at least 4", {"batches": digits_batches((9, 3, 9))}),
    ],
)
def test_the_gate_refuses_what_it_cannot_judge(message, options):
    with pytest.raises(ValueError, match=message):
        gate(**options)


def test_the_gate_refuses_complex_numbers_and_losses_that_are_not_finite():
    with pytest.raises(RankFailed, match=r"phase: found torch.complex64, expected .* imaginary"):
        gate(Complex)
    never = (lambda model, batch: DIGITS[0](model, batch) * math.nan), DIGITS[1]
    with pytest.raises(ValueError, match="step 0: the loss in one process is nan, expected a fin"):
        gate(loss=never)


def test_a_rank_that_fails_ends_the_gate():
    def failing(model, batch):
        if dist.get_world_size() == 2 and dist.get_rank() == 1:
            raise ArithmeticError("of the loss")
        return DIGITS[0](model, batch)

    with pytest.raises(RankFailed, match="rank 1: ArithmeticError: of the loss"):
        gate(loss=(failing, len))


@pytest.mark.parametrize(("name", "found"), [("make_model", make_mlp()), ("batches", len)])
def test_a_model_or_a_function_in_the_wrong_place_is_named(name, found):
    with pytest.raises(TypeError, match=f"^{name}: found a .*, expected"):
        gate(**{name: found})
