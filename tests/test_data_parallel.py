"""Replicas averaged after backward are one process on the whole batch, at 1e-12 in float64."""

import functools

import pytest
import torch
import torch.distributed as dist
from torch import nn

from helpers import problems
from helpers.compare import assert_replicas_equal, gradients, relative_error
from helpers.data_parallel import DataParallelNaive
from helpers.launch import RankFailed, run_function
from helpers.process_group import process_group
from helpers.traffic import count_traffic

WORLDS = (1, 2, 3, 4)
STEPS = 3


def mlp(seed: int = 0):
    return problems.make_mlp((64, 24, 10), seed=seed, dtype=torch.float64)


def gpt(seed: int = 0):
    return problems.make_gpt(
        seed=seed, width=16, depth=1, heads=2, context=32, tied=True, dtype=torch.float64
    )


class Oddities(nn.Module):
    """A frozen parameter, one that nobody uses, one for some images only, a buffer, strides."""

    def __init__(self, seed: int = 0):
        super().__init__()
        self.body = mlp(seed)
        self.frozen = nn.Parameter(torch.ones(64).double() * 0.9 + seed, requires_grad=False)
        self.unused = nn.Parameter(torch.ones(3).double() + seed)
        self.for_some = nn.Parameter(torch.full((10,), 0.1).double() + seed)
        self.transposed = nn.Parameter((torch.eye(64)[:, :32].double() + seed).t())
        self.register_buffer("offset", torch.tensor(0.25 + seed).double())
        self.register_buffer("calls", torch.tensor(seed))

    def forward(self, inputs):
        outputs = self.body(inputs * self.frozen - self.offset)
        outputs = outputs + (inputs @ self.transposed.t()).sum(1, keepdim=True).square()
        chosen = inputs[:, 36:37] > 0.75
        return outputs + chosen * self.for_some if chosen.any() else outputs


def digits_batches(size: int):
    images, labels = problems.digits(torch.float64).train
    # sorted, so that only the last ranks see images that Oddities gives its extra parameter to
    order = images[:, 36].argsort(stable=True)[:: len(images) // (STEPS * size)]
    parts = [order[i::STEPS][:size] for i in range(STEPS)]
    return [(images[part], labels[part]) for part in parts]


def text_batches(size: int):
    text = problems.encode(problems.library_text(20_000))
    generator = torch.Generator().manual_seed(5)
    return [problems.lines_batch(text, size, 32, generator) for _ in range(STEPS)]


DIGITS = problems.classification_loss_sum, problems.count_samples
TOKENS = problems.token_loss_sum, problems.count_tokens
CASES = {
    "digits": (mlp, digits_batches(24), DIGITS),
    "gpt": (gpt, text_batches(12), TOKENS),
    "uneven": (mlp, digits_batches(23), DIGITS),
    "uneven gpt": (gpt, text_batches(11), TOKENS),
    "oddities": (Oddities, digits_batches(24), DIGITS),
}


def shard(batch, rank: int, world_size: int):
    """Contiguous; one sample more on the last ranks where it does not divide."""
    edges = [len(batch[1]) * r // world_size for r in range(world_size + 1)]
    return tuple(x[edges[rank] : edges[rank + 1]] for x in batch)


def one_process(make, batches, loss):
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    found = []
    for batch in batches:
        optimizer.zero_grad()
        (loss[0](model, batch) / loss[1](batch)).backward()
        optimizer.step()
        found.append((gradients(model), dict(model.state_dict())))
        found[-1] = (found[-1][0], {name: x.clone() for name, x in found[-1][1].items()})
    return found


def on_a_rank(make, batches, loss, ranks, model_class):
    """Train from other numbers on each rank, and note whether replicas ever differ."""
    module = make(seed=ranks.rank)
    model = model_class(module)
    assert_replicas_equal(module)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    found = []
    for batch in batches:
        optimizer.zero_grad()
        part, total = shard(batch, ranks.rank, ranks.world_size), loss[1](batch)
        (loss[0](model, part) * ranks.world_size / total).backward()
        own = gradients(module)
        model.average_gradients()
        optimizer.step()
        state = {name: x.clone() for name, x in module.state_dict().items()}
        found.append((own, gradients(module), state))
    assert_replicas_equal(module)
    return found


def everything(cases):
    with process_group(timeout_s=20) as ranks:
        arguments = ranks, DataParallelNaive
        return {name: on_a_rank(*case, *arguments) for name, case in cases.items()}


@functools.cache
def on_ranks(world_size: int):
    return run_function(everything, CASES, nproc_per_node=world_size)


@functools.cache
def reference(name: str):
    return one_process(*CASES[name])


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("name", CASES)
def test_equal_to_one_process(name, world_size):
    for found in on_ranks(world_size):
        for (_, grads, state), (expected, after) in zip(found[name], reference(name), strict=True):
            assert relative_error(grads, expected) < 1e-12
            assert relative_error(state, after) < 1e-12


@pytest.mark.parametrize("world_size", [2, 4])
def test_gradients_differ_before_they_are_averaged(world_size):
    """The negative control: without it, equal shards would pass the test above."""
    own = [found["digits"][0][0] for found in on_ranks(world_size)]
    assert relative_error(own[0], own[1]) > 0.1


@pytest.mark.parametrize("world_size", [2, 4])
def test_a_parameter_that_only_some_ranks_use(world_size):
    """Without a gradient on some ranks it gets the mean; on none, it stays None."""
    steps = [found["oddities"] for found in on_ranks(world_size)]
    own = [[step[0]["for_some"] is not None for step in found] for found in steps]
    assert [any(by_rank) and not all(by_rank) for by_rank in zip(*own, strict=True)] == [True] * 3
    for found in steps:
        for _, grads, state in found:
            assert grads["for_some"] is not None
            assert grads["unused"] is None
            assert grads["frozen"] is None
            assert state["frozen"][0] == 0.9
            assert state["offset"] == 0.25


# what must be red: each is a version of the class that someone could write


class NoBroadcast(DataParallelNaive):
    def __init__(self, module):
        nn.Module.__init__(self)
        self.module, self.process_group = module, None


class SumForMean(DataParallelNaive):
    def average_gradients(self):
        for parameter in self.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)


class DividedTwice(DataParallelNaive):
    def average_gradients(self):
        super().average_gradients()
        for parameter in self.parameters():
            if parameter.grad is not None:
                parameter.grad /= dist.get_world_size()


class ParametersOnly(DataParallelNaive):
    def __init__(self, module):
        nn.Module.__init__(self)
        self.module, self.process_group = module, None
        for parameter in module.parameters():
            dist.broadcast(parameter.detach(), 0)


class WithoutTheLast(DataParallelNaive):
    def average_gradients(self):
        for parameter in list(self.parameters())[:-1]:
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()


class ParameterForGradient(DataParallelNaive):
    """Averages what is equal already."""

    @torch.no_grad()
    def average_gradients(self):
        for parameter in self.parameters():
            dist.all_reduce(parameter)
            parameter /= dist.get_world_size()


MUTANTS = [
    NoBroadcast, SumForMean, DividedTwice, ParametersOnly, WithoutTheLast, ParameterForGradient,
]  # fmt: skip


class WithBuffer(nn.Module):
    def __init__(self, seed: int = 0):
        super().__init__()
        self.body = mlp(seed)
        self.register_buffer("offset", torch.tensor(0.25 + seed).double())

    def forward(self, inputs):
        return self.body(inputs - self.offset)


def mutants_on_a_rank(case):
    with process_group(timeout_s=20) as ranks:
        found = {}
        for mutant in (DataParallelNaive, *MUTANTS):
            try:
                steps = on_a_rank(*case, ranks, mutant)
                found[mutant.__name__] = [(grads, state) for _, grads, state in steps]
            except AssertionError as error:
                found[mutant.__name__] = str(error)
        return found


@functools.cache
def mutants():
    case = WithBuffer, digits_batches(24), DIGITS
    return one_process(*case), run_function(mutants_on_a_rank, case, nproc_per_node=2)


def errors(found, expected) -> float:
    pairs = zip(found, expected, strict=True)
    return max(max(relative_error(a, b) for a, b in zip(*pair, strict=True)) for pair in pairs)


@pytest.mark.parametrize("mutant", [DataParallelNaive, *MUTANTS], ids=lambda each: each.__name__)
def test_a_mutant_is_red(mutant):
    expected, ranks = mutants()
    for found in (rank[mutant.__name__] for rank in ranks):
        is_red = isinstance(found, str) or errors(found, expected) > 1e-3
        assert is_red == (mutant is not DataParallelNaive)


# how it behaves otherwise


def behaviour():
    with process_group(timeout_s=20) as ranks:
        n, told = ranks.world_size, {}
        try:
            DataParallelNaive(problems.make_mlp((64, 10 + (ranks.rank == n - 1))))
        except ValueError as error:
            told["other shape"] = str(error)
        model = DataParallelNaive(nn.Sequential(nn.Embedding(5, 2, sparse=True), nn.Linear(2, 1)))
        model(torch.tensor([ranks.rank])).sum().backward()
        try:
            model.average_gradients()
        except ValueError as error:
            told["sparse"] = str(error)
        with count_traffic() as traffic:
            model = DataParallelNaive(Oddities())
        told["broadcasts"] = traffic.collectives["broadcast"]
        model(torch.zeros(4, 64).double()).sum().backward()
        with count_traffic() as traffic:
            model.average_gradients()
        told["all-reduces"] = traffic.collectives["all_reduce"]
        told["keys"] = list(model.state_dict())[:2]
        told["pairs"] = pairs_of_four(ranks) if n == 4 else None
        return told


def pairs_of_four(ranks):
    """Ranks 0, 1 and ranks 2, 3 each train a model of their own."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    group = groups[ranks.rank // 2]
    module = mlp(seed=ranks.rank)
    model = DataParallelNaive(module, group)
    first = module[0].weight.flatten()[0].item()
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, float(ranks.rank))
    model.average_gradients()
    dist.barrier()  # a rank that left now would cut the others off
    return first, module[0].weight.grad.flatten()[0].item()


@functools.cache
def behaviours(world_size: int):
    return run_function(behaviour, nproc_per_node=world_size)


@pytest.mark.parametrize("world_size", [2, 4])
def test_what_cannot_be_replicated_is_refused_on_every_rank(world_size):
    expected = (
        f"rank {world_size - 1} has 0.weight (11, 64) torch.float32 where rank 0 has "
        "0.weight (10, 64) torch.float32, expected one model on all"
    )
    for told in behaviours(world_size):
        assert told["other shape"] == expected
        assert told["sparse"] == "sparse gradients of 0.weight, expected dense ones"


def test_one_collective_a_tensor():
    """4 + 4 parameters and 2 buffers; gradients of the 4 and of one more, and their presence."""
    for told in behaviours(2):
        assert told["broadcasts"] == 10
        assert told["all-reduces"] == 4 + 1 + 1
        assert told["keys"] == ["module.frozen", "module.unused"]


def test_a_group_has_its_own_first_rank_and_its_own_size():
    firsts = [mlp(seed)[0].weight.flatten()[0].item() for seed in (0, 0, 2, 2)]
    means = [0.5, 0.5, 2.5, 2.5]
    assert [told["pairs"] for told in behaviours(4)] == list(zip(firsts, means, strict=True))


def without_a_group():
    DataParallelNaive(mlp())


def test_without_a_process_group_it_is_refused():
    with pytest.raises(RankFailed, match="process group has not been initialized"):
        run_function(without_a_group, nproc_per_node=1)
