"""Accumulated gradients are those of one big batch, on one process and on ranks of any window."""

import collections
import contextlib
import functools
import gc
import math
import weakref

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from helpers import problems
from helpers.accumulate import GradientAccumulator, accumulate_gradients, split_batch, windows
from helpers.compare import gradients, relative_error
from helpers.launch import RankFailed, run_function
from helpers.memory import LiveBytes
from helpers.process_group import process_group

SIZES = (64, 16, 10)
make_mlp = functools.partial(problems.make_mlp, SIZES, dtype=torch.float64)
loss_sum, count = problems.classification_loss_sum, problems.count_samples


def batch_of(num_samples: int, start: int = 0):
    images, labels = problems.digits(torch.float64).train
    return images[start : start + num_samples], labels[start : start + num_samples]


def big_batch_gradients(model, batch) -> dict:
    """The reference: one forward, one backward, the mean of cross_entropy itself."""
    model.zero_grad()
    F.cross_entropy(model(batch[0]), batch[1]).backward()
    found = gradients(model)
    model.zero_grad()
    return found


def token_batch(num_lines: int = 12):
    """Lines of 1 to 101 tokens, the short ones first; the same on every Python."""
    tokens = torch.randint(96, (num_lines, 102), generator=torch.Generator().manual_seed(0))
    lengths = torch.linspace(1, 101, num_lines).long()
    is_padding = torch.arange(101) >= lengths[:, None]
    return tokens[:, :-1], tokens[:, 1:].masked_fill(is_padding, problems.IGNORE_INDEX)


# windows and split_batch


def test_windows_keep_the_short_last_one():
    assert list(windows(range(10), 4)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert list(windows(range(10), 16)) == [list(range(10))]
    assert list(windows([], 4)) == []
    with pytest.raises(ValueError, match="0 micro-batches"):
        windows(range(3), 0)


def test_windows_are_lazy():
    drawn = []
    source = (drawn.append(i) or i for i in range(100))
    assert next(windows(source, 4)) == [0, 1, 2, 3]
    assert drawn == [0, 1, 2, 3]


def test_split_batch_cuts_every_tensor_alike():
    batch = torch.arange(10), {"labels": torch.arange(10) * 2}
    parts = split_batch(batch, 4)
    assert [len(part[0]) for part in parts] == [4, 4, 2]
    assert torch.equal(torch.cat([part[0] for part in parts]), batch[0])
    assert torch.equal(torch.cat([part[1]["labels"] for part in parts]), batch[1]["labels"])
    assert split_batch(torch.zeros(0, 3), 4) == []
    with pytest.raises(ValueError, match="0 samples, expected at least 1"):
        split_batch(batch, 0)
    with pytest.raises(ValueError, match=r"\[9, 10\] samples"):
        split_batch((torch.zeros(10), torch.zeros(9)), 4)


def test_split_batch_keeps_named_tuples_and_names_what_it_cannot_cut():
    Pair = collections.namedtuple("Pair", ["inputs", "labels"])
    parts = split_batch(Pair(torch.arange(7), [torch.arange(7)]), 4)
    assert [type(part) for part in parts] == [Pair, Pair]
    assert parts[1].inputs.tolist() == parts[1].labels[0].tolist() == [4, 5, 6]
    for batch, message in (
        ((torch.zeros(7), ["a"] * 7), r"batch\[1\]\[0\]: found str, expected a tensor"),
        ({"x": torch.zeros(7), "n": 3}, r"batch\['n'\]: found int"),
        (torch.tensor(1.0), "batch: found a tensor of no dimensions"),
    ):
        with pytest.raises(TypeError, match=message):
            split_batch(batch, 4)


# one process


@pytest.mark.parametrize("micro_batch_size", [1, 5, 16, 48, 100])
def test_accumulation_is_the_big_batch(micro_batch_size):
    model, batch = make_mlp(), batch_of(48)
    expected = big_batch_gradients(model, batch)
    loss = accumulate_gradients(model, split_batch(batch, micro_batch_size), loss_sum, count)
    assert relative_error(gradients(model), expected) < 1e-14
    mean = F.cross_entropy(model(batch[0]), batch[1]).item()
    assert abs(loss - mean) < 1e-14


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_group_norm_agrees_and_batch_norm_does_not(norm):
    model, batch = problems.make_conv(dtype=torch.float64, norm=norm), batch_of(32)
    expected = big_batch_gradients(model, batch)
    accumulate_gradients(model, split_batch(batch, 8), loss_sum, count)
    error = relative_error(gradients(model), expected)
    assert error < 1e-13 if norm == "group" else error > 1e-3


@pytest.mark.parametrize("tied", [False, True])
def test_unequal_token_counts_weigh_by_token(tied):
    model = problems.make_gpt(width=32, dtype=torch.float64, tied=tied)
    batch = token_batch()
    (problems.token_loss_sum(model, batch) / problems.count_tokens(batch)).backward()
    expected = gradients(model)
    model.zero_grad()
    window = split_batch(batch, 3)
    accumulate_gradients(model, window, problems.token_loss_sum, problems.count_tokens)
    assert relative_error(gradients(model), expected) < 1e-13
    means = [problems.token_loss_sum(model, part) / problems.count_tokens(part) for part in window]
    model.zero_grad()
    (sum(means) / len(means)).backward()  # negative control: a mean of means
    assert relative_error(gradients(model), expected) > 1e-2


def test_an_ignored_micro_batch_adds_nothing():
    model, batch = problems.make_gpt(width=32, dtype=torch.float64), token_batch(4)
    call = functools.partial(
        accumulate_gradients, loss_sum=problems.token_loss_sum, count=problems.count_tokens
    )
    loss = call(model, [batch])
    expected = gradients(model)
    model.zero_grad()
    ignored = batch[0], torch.full_like(batch[1], problems.IGNORE_INDEX)
    assert call(model, [ignored, batch, ignored]) == loss
    assert relative_error(gradients(model), expected) < 1e-15
    model.zero_grad()
    assert call(model, [ignored, ignored]) == 0.0
    assert all(grad.abs().max() == 0 for grad in gradients(model).values())


def test_it_adds_to_existing_gradients_and_leaves_frozen_and_unused_alone():
    model = nn.ModuleDict({"used": make_mlp(), "unused": nn.Linear(2, 2)})
    model["used"][0].weight.requires_grad_(False)

    def loss(model, batch):
        return loss_sum(model["used"], batch)

    window = split_batch(batch_of(12), 5)
    accumulate_gradients(model, window, loss, count)
    once = gradients(model)
    accumulate_gradients(model, window, loss, count)
    twice = {name: None if grad is None else grad / 2 for name, grad in gradients(model).items()}
    assert relative_error(twice, once) < 1e-15
    assert once["used.0.weight"] is None
    assert once["unused.weight"] is None


def test_counts_may_be_tensors_and_a_window_any_iterable():
    model, batch = make_mlp(), batch_of(12)
    expected = big_batch_gradients(model, batch)
    window = iter(split_batch(batch, 5))
    accumulate_gradients(model, window, loss_sum, lambda b: torch.tensor(len(b[1])))
    assert relative_error(gradients(model), expected) < 1e-14


@pytest.mark.parametrize("counts", [[3, -1], [3, math.nan], [math.inf, 1]])
def test_bad_counts_are_refused_before_any_forward(counts):
    counts = iter(counts)
    with pytest.raises(ValueError, match="expected finite numbers that are not negative"):
        accumulate_gradients(Forwardless(), [1, 2], loss_sum, lambda batch: next(counts))


class Forwardless(nn.Linear):
    """A model whose forward must not run."""

    def __init__(self):
        super().__init__(1, 1)

    def forward(self, x):
        raise AssertionError("forward ran")


def test_an_empty_window_is_refused():
    with pytest.raises(ValueError, match="an empty window, expected at least one micro-batch"):
        accumulate_gradients(Forwardless(), [], loss_sum, count)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-6), (torch.bfloat16, 1e-2)])
def test_loss_of_another_dtype(dtype, bound):
    model = problems.make_mlp(SIZES)
    batch = tuple(x.float() if x.is_floating_point() else x for x in batch_of(12))
    expected = big_batch_gradients(model, batch)

    def loss_of_dtype(model, batch):
        return loss_sum(model, batch).to(dtype)

    found = accumulate_gradients(model, split_batch(batch, 4), loss_of_dtype, count)
    assert relative_error(gradients(model), expected) < bound
    assert found == pytest.approx(math.log(10), rel=0.1)


def test_backward_admits_a_gradient_scaler():
    model, batch = make_mlp(), batch_of(12)
    expected = big_batch_gradients(model, batch)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mean = accumulate_gradients(
        model,
        split_batch(batch, 4),
        loss_sum,
        count,
        backward=lambda loss: scaler.scale(loss).backward(),
    )
    scaled = {name: grad * 1024 for name, grad in expected.items()}
    assert relative_error(gradients(model), scaled) < 1e-12
    scaler.unscale_(optimizer)
    assert relative_error(gradients(model), expected) < 1e-12
    assert mean < 10  # the loss that is logged is not scaled


def test_no_graph_outlives_its_micro_batch():
    model, graphs, alive = make_mlp(), [], []

    def watched(model, batch):
        gc.collect()
        alive.append(sum(graph() is not None for graph in graphs))
        loss = loss_sum(model, batch)
        graphs.append(weakref.ref(loss))
        return loss

    accumulate_gradients(model, split_batch(batch_of(12), 3), watched, count)
    assert alive == [0, 0, 0, 0]


def peak_bytes(num_micro_batches: int, run) -> int:
    """Peak over one window of micro-batches of two samples each."""
    model = problems.make_conv()
    images, labels = problems.digits().train
    window = split_batch((images[: 2 * num_micro_batches], labels[: 2 * num_micro_batches]), 2)
    with LiveBytes() as memory:
        run(model, window)
    return memory.peak_bytes


def one_backward(model, window):
    sum(loss_sum(model, part) for part in window).backward()


def test_peak_memory_does_not_depend_on_the_window_and_does_where_losses_are_summed():
    ours = functools.partial(accumulate_gradients, loss_sum=loss_sum, count=count)
    assert peak_bytes(16, ours) < 1.05 * peak_bytes(2, ours)
    assert peak_bytes(16, one_backward) > 4 * peak_bytes(2, one_backward)


class Counting(nn.Module):
    """A wrapper with no_sync, outside any process group: notes where forward and backward run."""

    def __init__(self, module):
        super().__init__()
        self.module, self.is_synchronising, self.seen = module, True, []
        module[0].weight.register_hook(lambda grad: self.seen.append(("backward", self.state())))

    def state(self):
        return "sync" if self.is_synchronising else "no_sync"

    def forward(self, x):
        self.seen.append(("forward", self.state()))
        return self.module(x)

    @contextlib.contextmanager
    def no_sync(self):
        self.is_synchronising = False
        try:
            yield
        finally:
            self.is_synchronising = True


def test_all_but_the_last_forward_and_backward_run_inside_no_sync():
    model = Counting(make_mlp())
    accumulate_gradients(model, split_batch(batch_of(12), 5), loss_sum, count)
    quiet = [("forward", "no_sync"), ("backward", "no_sync")]
    assert model.seen == [*quiet, *quiet, ("forward", "sync"), ("backward", "sync")]


def test_an_exception_leaves_no_sync_restored():
    model = Counting(make_mlp())

    def failing(model, batch):
        raise ArithmeticError("of the loss")

    with pytest.raises(ArithmeticError):
        accumulate_gradients(model, split_batch(batch_of(12), 5), failing, count)
    assert model.is_synchronising


# GradientAccumulator


def accumulate_bf16(model, gradient_list, accumulator=None):
    for gradient in gradient_list:
        for parameter in model.parameters():
            new = torch.full_like(parameter, gradient)
            parameter.grad = new if parameter.grad is None else parameter.grad + new
        if accumulator:
            accumulator.add()
    if accumulator:
        accumulator.assign()
    return next(model.parameters()).grad


def test_a_float32_buffer_keeps_what_bfloat16_loses():
    model = nn.Linear(2, 2, dtype=torch.bfloat16)
    small = [1e-3] * 4096  # the sum is 4.096
    assert accumulate_bf16(model, small).max().item() == 0.5
    model.zero_grad()
    grad = accumulate_bf16(model, small, GradientAccumulator(model.parameters()))
    assert grad.dtype == torch.bfloat16
    assert grad.max().item() == pytest.approx(4.096, rel=2**-8)


def test_accumulator_is_the_plain_sum_where_nothing_is_lost():
    model, window = make_mlp(), split_batch(batch_of(12), 5)
    accumulate_gradients(model, window, loss_sum, count)
    expected = gradients(model)
    model.zero_grad()
    accumulator = GradientAccumulator(model.parameters(), dtype=torch.float64)

    def backward(loss):
        loss.backward()
        accumulator.add()
        assert all(parameter.grad is None for parameter in model.parameters())

    for _ in range(2):  # a second window starts from nothing
        accumulate_gradients(model, window, loss_sum, count, backward=backward)
        accumulator.assign()
        assert relative_error(gradients(model), expected) == 0
        model.zero_grad()


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_accumulator_never_narrows(dtype):
    parameter = nn.Parameter(torch.zeros(1, dtype=dtype))
    accumulator = GradientAccumulator([parameter])
    addend = 1 / 3 if dtype == torch.float64 else 1 / 3 + 1j
    for _ in range(3):
        parameter.grad = torch.full_like(parameter, addend)
        accumulator.add()
    accumulator.assign()
    assert torch.equal(parameter.grad, 0 + sum([torch.full_like(parameter, addend)] * 3))


def test_accumulator_with_frozen_tied_and_unused_parameters():
    model = problems.make_gpt(width=16, heads=2, dtype=torch.bfloat16, tied=True)
    model.position_embedding.weight.requires_grad_(False)
    model.unused = nn.Linear(2, 2)
    accumulator = GradientAccumulator([*model.parameters(), model.head.weight])
    assert len(accumulator.parameters) == len(list(model.parameters()))
    batch = token_batch(3)
    problems.token_loss_sum(model, batch).backward()
    expected = gradients(model)
    accumulator.add()
    accumulator.assign()
    assert relative_error(gradients(model), expected) == 0
    assert model.position_embedding.weight.grad is None
    assert model.unused.weight.grad is None
    torch.optim.AdamW(model.parameters()).step()


def test_accumulator_refuses_misuse():
    model = make_mlp()
    with pytest.raises(ValueError, match="no parameters"):
        GradientAccumulator([])
    with pytest.raises(ValueError, match="int64"):
        GradientAccumulator(model.parameters(), dtype=torch.int64)
    accumulator = GradientAccumulator(model.parameters())
    loss_sum(model, batch_of(3)).backward()
    with pytest.raises(RuntimeError, match="4 gradients not added"):
        accumulator.assign()


# several ranks


def window_of(rank: int, is_uneven: bool):
    """Rank r's own samples in micro-batches of 3: 12 of them, or 3 (r + 1) + 2 where uneven."""
    start = sum(3 * (other + 1) + 2 for other in range(rank)) if is_uneven else 12 * rank
    return split_batch(batch_of(3 * (rank + 1) + 2 if is_uneven else 12, start), 3)


def share(rank: int):
    """Uneven windows, a plain model with a group: (loss, this rank's share, sum of shares)."""
    model = make_mlp()
    loss = accumulate_gradients(model, window_of(rank, True), loss_sum, count, dist.group.WORLD)
    shares = gradients(model)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    return loss, shares, gradients(model)


def wrapped(rank: int, inner: nn.Module, is_uneven: bool):
    """DDP, three windows, since it lays out its buckets anew after the first."""
    model = nn.parallel.DistributedDataParallel(inner)
    for _ in range(3):
        model.zero_grad()
        loss = accumulate_gradients(model, window_of(rank, is_uneven), loss_sum, count)
    return loss, gradients(inner), model.require_backward_grad_sync


def with_buffers(rank: int):
    """DDP broadcasts buffers in forward; the statistics are frozen, so that they do not differ."""
    inner = problems.make_conv(dtype=torch.float64, norm="batch")
    inner[2].eval(), inner[5].eval()
    return wrapped(rank, inner, True)


def ignored(ranks: list[int], rank: int):
    """DDP on the same tokens everywhere, all ignored on some ranks."""
    inner = problems.make_gpt(width=16, heads=2, dtype=torch.float64)
    model = nn.parallel.DistributedDataParallel(inner)
    inputs, targets = token_batch(4)
    if rank in ranks:
        targets = torch.full_like(targets, problems.IGNORE_INDEX)
    window = split_batch((inputs, targets), 2)
    loss = accumulate_gradients(model, window, problems.token_loss_sum, problems.count_tokens)
    return loss, gradients(inner)


def refused(*arguments) -> str:
    with pytest.raises(ValueError, match="expected") as caught:
        accumulate_gradients(*arguments)
    return str(caught.value)


def empty(rank: int) -> list[str]:
    window, model = [1] * (rank == 0), Forwardless()
    ddp = nn.parallel.DistributedDataParallel(model)
    return [
        refused(model, window, loss_sum, lambda batch: 1, dist.group.WORLD),
        refused(ddp, window, loss_sum, lambda batch: 1),
    ]


def everything_on_ranks(world_size: int) -> dict:
    with process_group(timeout_s=20) as ranks:
        rank, world = ranks.rank, dist.group.WORLD
        found = {
            "share": share(rank),
            "even": wrapped(rank, make_mlp(), False),
            "uneven": wrapped(rank, make_mlp(), True),
        }
        if world_size == 2:
            found["buffers"] = with_buffers(rank)
            found["ignored on one"] = ignored([1], rank)
            found["ignored on all"] = ignored([0, 1], rank)
            found["bad"] = refused(Forwardless(), [1], loss_sum, lambda batch: -rank, world)
        if world_size > 1:
            found["empty"] = empty(rank)
            ddp = nn.parallel.DistributedDataParallel(make_mlp())
            other = dist.new_group()
            dist.barrier()  # a rank that left now would cut the others off while they connect
            found["foreign"] = refused(ddp, window_of(0, False), loss_sum, count, other)
        return found


@functools.cache
def on_ranks(world_size: int) -> list[dict]:
    """One launch for each world: starting ranks is what takes the time."""
    return run_function(everything_on_ranks, world_size, nproc_per_node=world_size)


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("kind", ["share", "even", "uneven"])
def test_ranks_with_windows_of_any_length_give_the_big_batch(world_size, kind):
    windows_ = [window_of(rank, kind != "even") for rank in range(world_size)]
    batch = batch_of(sum(len(part[1]) for window in windows_ for part in window))
    model = make_mlp()
    expected = big_batch_gradients(model, batch)
    mean = F.cross_entropy(model(batch[0]), batch[1]).item()
    for loss, grads, extra in (found[kind] for found in on_ranks(world_size)):
        assert abs(loss - mean) < 1e-12
        if kind == "share":
            assert relative_error(extra, expected) < 1e-12
            assert world_size == 1 or relative_error(grads, expected) > 0.1
        else:
            assert relative_error(grads, expected) < 1e-12
            assert extra is True  # no_sync is over


def test_buffers_and_uneven_windows_go_together():
    first, second = (found["buffers"] for found in on_ranks(2))
    assert relative_error(first[1], second[1]) == 0


@pytest.mark.parametrize("world_size", [2, 4])
def test_an_empty_window_is_refused_on_every_rank(world_size):
    ranks = list(range(1, world_size))
    message = f"an empty window on ranks {ranks} of {world_size}, expected at least one micro-batch"
    assert [found["empty"] for found in on_ranks(world_size)] == [[message] * 2] * world_size


def test_a_bad_count_is_refused_on_every_rank():
    first, second = (found["bad"] for found in on_ranks(2))
    assert first.startswith("a bad count on another rank, expected finite")
    assert second.startswith("counts [-1.0] here, expected finite")


def test_a_group_that_is_not_the_models_is_refused():
    assert {found["foreign"] for found in on_ranks(2)} == {
        "a group that is not the model's own process group, expected None"
    }


def test_ignored_windows_of_one_rank_and_of_all():
    model = problems.make_gpt(width=16, heads=2, dtype=torch.float64)
    window = [token_batch(4)]
    mean = accumulate_gradients(model, window, problems.token_loss_sum, problems.count_tokens)
    for found in on_ranks(2):
        loss, grads = found["ignored on one"]
        assert loss == pytest.approx(mean, rel=1e-14)
        assert relative_error(grads, gradients(model)) < 1e-12
        loss, grads = found["ignored on all"]
        assert loss == 0.0
        assert all(grad.abs().max() == 0 for grad in grads.values())


def failing_on_rank_1():
    with process_group(timeout_s=20) as ranks:

        def failing(model, batch):
            if ranks.rank == 1:
                raise ArithmeticError("of the loss")
            return loss_sum(model, batch)

        window = window_of(ranks.rank, False)
        accumulate_gradients(make_mlp(), window, failing, count, dist.group.WORLD)


def test_a_loss_that_fails_on_one_rank_ends_the_job():
    with pytest.raises(RankFailed, match="rank 1: ArithmeticError: of the loss"):
        run_function(failing_on_rank_1)
