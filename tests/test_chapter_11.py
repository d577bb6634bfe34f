"""Chapter 11: its figures, and the duties of its table, for our class and for torch's."""

import copy
import itertools
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel as TorchDDP
from torch.utils.checkpoint import checkpoint

from helpers import launch
from helpers.data_parallel import DistributedDataParallel as OurDDP
from helpers.process_group import process_group
from helpers.traffic import count_traffic

CLASSES = {"ours": OurDDP, "torch": TorchDDP}


def inputs(rank: int) -> torch.Tensor:
    return torch.arange(6.0, dtype=torch.float64).view(2, 3) + 10 * rank


def linear(*sizes: int) -> nn.Sequential:
    layers = itertools.starmap(nn.Linear, itertools.pairwise(sizes))
    return nn.Sequential(*layers).double()


def off_the_mean(model: nn.Module, serial: nn.Module, *, halve: bool = False) -> float:
    """How far this rank's gradients are from the mean of one process over both ranks' inputs."""
    losses = [serial(inputs(rank)).square().sum() for rank in range(2)]
    (sum(losses) / (4 if halve else 2)).backward()
    pairs = zip(model.parameters(), serial.parameters(), strict=True)
    return max((a.grad - b.grad).abs().max().item() / b.grad.abs().max().item() for a, b in pairs)


def plain(wrap, rank, make=lambda: linear(3, 4, 1)):
    serial = make()
    model = wrap(copy.deepcopy(serial))
    model(inputs(rank)).square().sum().backward()
    return off_the_mean(model.module, serial)


def tied(wrap, rank):
    def make():
        net = linear(3, 3, 3)
        net[1].weight = net[0].weight
        return net

    return plain(wrap, rank, make)


def one_row(wrap, rank):
    return plain(wrap, rank, lambda: linear(3, 1))


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 2, 1).double().to(memory_format=torch.channels_last)

    def forward(self, x):
        images = x.view(2, 3, 1, 1).expand(2, 3, 2, 2)
        return self.layer(images.contiguous(memory_format=torch.channels_last))


def channels_last(wrap, rank):
    return plain(wrap, rank, Convolution)


def divided_in_place(wrap, rank):
    serial = linear(3, 1)
    model = wrap(copy.deepcopy(serial), find_unused_parameters=True)
    loss = model(inputs(rank)).square().sum()
    loss /= 2
    loss.backward()
    return off_the_mean(model.module, serial, halve=True)


def two_forwards(wrap, rank):
    model = wrap(nn.Sequential(linear(3, 1), nn.BatchNorm1d(1).double()))
    (model(inputs(rank)) + model(inputs(rank))).sum().backward()
    return True


def frozen_late(wrap, rank):
    """The gradient of the other layer in each iteration; last the error, where one raises."""
    net, found = linear(3, 3, 1), []
    model = wrap(net)
    for iteration in range(3):
        net[0].requires_grad_(iteration == 0)
        model.zero_grad()
        try:
            model(inputs(rank)).sum().backward()
        except RuntimeError as error:
            return [*found, str(error)]
        found.append(net[1].weight.grad.clone())
    return found


def broadcasts(wrap, rank):
    """How many messages each of several forwards sends for the two kinds of buffers."""
    model, found = wrap(nn.BatchNorm1d(3).double()), []
    window = [model.no_sync, model.no_sync, nullcontext]
    for context in (nullcontext, *window, nullcontext, torch.no_grad, torch.no_grad, nullcontext):
        with count_traffic() as traffic, context():
            model(inputs(rank))
        found.append(traffic.collectives["broadcast"])
    return found


def large_in_float16(wrap, rank):
    """The mean of 100 000 and 0, of which the first is more than float16 holds."""
    model = wrap(nn.Linear(1, 1, bias=False))
    model.register_comm_hook(dist.group.WORLD, fp16_compress_hook)
    model(torch.full((1, 1), 1e5 * (1 - rank))).sum().backward()
    return model.module.weight.grad.item()


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3).double()

    def forward(self, x):
        x = x.clone().requires_grad_()
        for _ in range(2):
            x = checkpoint(self.layer, x, use_reentrant=True)
        return x


def reentrant(wrap, rank):
    return plain(wrap, rank, Twice)


def reentrant_and_find(wrap, rank):
    model = wrap(Twice(), find_unused_parameters=True)
    model(inputs(rank)).sum().backward()


def validation_on_rank_0(wrap, rank):
    model = wrap(nn.Sequential(linear(3, 1), nn.BatchNorm1d(1).double()))
    if rank == 0:
        with torch.no_grad():
            model.eval().module(inputs(rank))
    dist.barrier()
    return True


class WithModule(nn.Module):
    """A model that has a part called `module` itself."""

    def __init__(self):
        super().__init__()
        self.module = linear(3, 1)

    def forward(self, x):
        return self.module(x)


def keys(wrap, rank):
    model = wrap(WithModule())
    again = WithModule()
    again.load_state_dict(model.module.state_dict())
    return list(model.state_dict()), list(again.state_dict())


def sync_batch_norm(wrap, rank):
    wrap(nn.Sequential(nn.Linear(1, 1), nn.SyncBatchNorm(1)))


def thawed(wrap, rank):
    net = linear(3, 3, 1)
    net[0].requires_grad_(False)
    model = wrap(net)
    model(inputs(rank)).sum().backward()
    net[0].requires_grad_(True)
    model(inputs(rank)).sum().backward()
    return net[0].weight.grad.clone()


def aside(wrap, rank):
    model = wrap(linear(3, 1))
    model.module(inputs(rank)).sum().backward()
    return model.module[0].weight.grad.clone()


CASES = (
    plain, tied, one_row, channels_last, divided_in_place, two_forwards, frozen_late, reentrant,
    reentrant_and_find, validation_on_rank_0, keys, sync_batch_norm, thawed, aside, broadcasts,
    large_in_float16,
)  # fmt: skip


def outcome(case, wrap):
    """What the case returns, or its error as text. Every rank must call this."""
    with process_group(timeout_s=10) as ranks:
        torch.manual_seed(0)
        try:
            return case(wrap, ranks.rank)
        except (RuntimeError, ValueError) as error:
            return f"{type(error).__name__}: {error}"


@pytest.fixture(scope="module")
def found():
    """(class, case) -> what each rank found; all on the same two ranks."""

    def run_all():
        return {(c, case.__name__): outcome(case, CLASSES[c]) for case in CASES for c in CLASSES}

    by_rank = launch.run_function(run_all, timeout_s=100)
    return {key: [rank[key] for rank in by_rank] for key in by_rank[0]}


RIGHT = ("plain", "tied", "one_row", "channels_last", "divided_in_place")


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("case", RIGHT)
def test_gradients_are_the_mean(found, name, case):
    assert max(found[name, case]) < 1e-12


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("case", ["two_forwards", "validation_on_rank_0"])
def test_neither_an_error_nor_a_hang(found, name, case):
    assert found[name, case] == [True, True]


@pytest.mark.parametrize("case", ["thawed", "aside"])
def test_torch_leaves_gradients_unreduced_where_ours_averages(found, case):
    assert torch.equal(*found["ours", case])
    assert not torch.allclose(*found["torch", case])


def test_a_layer_frozen_late_is_followed_by_ours_and_refused_by_torch(found):
    for here, there in zip(*found["ours", "frozen_late"], strict=True):
        assert torch.equal(here, there)
    first, parted, error = zip(*found["torch", "frozen_late"], strict=True)
    assert torch.equal(*first)
    assert not torch.allclose(*parted)  # one iteration passes, unreduced
    assert all("Expected to have finished" in text for text in error)


@pytest.mark.parametrize("name", CLASSES)
def test_buffers_are_broadcast_unless_the_forward_before_synchronised_nothing(found, name):
    window, evaluation = [2, 0, 0], [2, 0]
    assert found[name, "broadcasts"] == [[2, *window, 2, *evaluation, 0]] * 2


@pytest.mark.parametrize("name", CLASSES)
def test_torchs_hook_casts_before_it_divides(found, name):
    assert found[name, "large_in_float16"] == [float("inf")] * 2


def test_a_reentrant_checkpoint_of_a_shared_layer(found):
    assert max(found["ours", "reentrant"]) < 1e-12
    assert min(found["torch", "reentrant"]) > 1e-3  # silently, and each rank otherwise
    for name in CLASSES:
        assert all("ready only once" in x for x in found[name, "reentrant_and_find"])
    assert all("use_reentrant=False" in x for x in found["ours", "reentrant_and_find"])


def test_keys_of_a_checkpoint(found):
    wrapped, inner = found["torch", "keys"][0]
    assert found["ours", "keys"] == [(wrapped, inner)] * 2
    assert inner == ["module.0.weight", "module.0.bias"]
    assert wrapped == [f"module.{key}" for key in inner]


@pytest.mark.parametrize("name", CLASSES)
def test_sync_batch_norm_is_refused_on_the_cpu(found, name):
    assert all("SyncBatchNorm" in x for x in found[name, "sync_batch_norm"])


@pytest.mark.parametrize("name", CLASSES)
def test_a_hook_that_raises_ends_every_rank_and_is_named(name):
    def train():
        with process_group(timeout_s=10) as ranks:
            model = CLASSES[name](linear(3, 1))

            def hook(state, bucket):
                if ranks.rank == 1:
                    raise KeyError("no such table")
                return dist.all_reduce(bucket.buffer(), async_op=True).get_future()

            model.register_comm_hook(None, hook)
            model(inputs(ranks.rank)).sum().backward()

    with pytest.raises(launch.RankFailed) as caught:
        launch.run_function(train, timeout_s=30)
    assert caught.value.rank == 1
    assert "no such table" in str(caught.value)


def test_what_the_chapter_builds_averages_as_ours_does():
    from notebook_cells import chapter, namespace

    hooks = namespace(chapter("11"))["DataParallelHooks"]

    def errors():
        return [outcome(plain, wrap) for wrap in (hooks, OurDDP, TorchDDP)]

    for errors_of_rank in launch.run_function(errors):
        assert max(errors_of_rank) < 1e-12


def figures():
    from helpers.figures import distributed

    return distributed


def test_a_guess_of_the_order_decides_when_buckets_leave():
    module = figures()
    for registered, sent_first in (("as in forward", 3), ("last layer first", 3), ("backwards", 0)):
        plans = [module.buckets_of(registered, iteration) for iteration in (0, 1)]
        assert all(sorted(itertools.chain(*plan)) == list(range(8)) for plan in plans)
        assert [module.sent_after(plan, 7) for plan in plans] == [sent_first, 3]
        assert all(module.sent_after(plan, 8) == 4 for plan in plans)


@pytest.mark.parametrize("iteration", [0, 1])
@pytest.mark.parametrize("ready", [0, 8])
def test_the_exploration_at_both_ends_of_its_sliders(iteration, ready):
    from helpers.figures import to_svg

    module = figures()
    for registered in module.REGISTERED:
        figure = module.bucket_filling(registered, iteration, ready)
        assert figure.shows == f"{ready} of 8 gradients ready, {ready // 2} of 4 buckets sent"
        again = module.bucket_filling(registered, iteration, ready)
        assert to_svg(figure, "alt") == to_svg(again, "alt")


def test_a_trace_marks_what_is_exposed():
    from helpers.figures import to_svg

    module = figures()
    step = {"compute": [(0, 4)], "all-reduce": [(2, 7)], "exposed": [(4, 7)]}
    assert module.trace({"one": step}).shows == "Lanes of a trace; one: 3 ms exposed"
    assert to_svg(module.trace({"one": step}), "") == to_svg(module.trace({"one": step}), "")
    assert to_svg(module.streams(), "") == to_svg(module.streams(), "")


def test_the_chapter_sums_what_is_exposed():
    """`outside`, as the chapter defines it, on intervals that can be summed by eye."""
    from notebook_cells import chapter, code_cells, execute, read

    cell = next(c for c in code_cells(read(chapter("11"))) if "def outside" in c.source)
    names: dict = {}
    execute(cell, names, "11[outside]")
    outside = names["outside"]
    assert outside([(0, 4), (2, 6)]) == [(0, 2), (2, 4), (4, 6)]
    assert outside([(0, 6)], [(1, 2), (4, 9)]) == [(0, 1), (2, 4)]
    assert outside([(1, 2)], [(0, 3)]) == outside([]) == []
