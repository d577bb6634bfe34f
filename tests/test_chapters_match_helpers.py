"""What a chapter builds, the helper that later chapters use, and PyTorch give the same numbers."""

import gc
from collections.abc import Callable
from functools import cache

import pytest
import torch
from notebook_cells import chapter, namespace
from torch import nn

from helpers import accumulate, collectives, cost_model, launch, memory, problems, sampler
from helpers.buckets import plan_buckets
from helpers.compare import relative_error
from helpers.data_parallel import (
    DataParallelFlat,
    DataParallelNaive,
    DistributedDataParallel,
)
from helpers.link import Link
from helpers.process_group import process_group

EXACT = 1e-12  # float64, sums of a few hundred terms
Version = Callable[[nn.Module, list], float]  # adds gradients of the window, returns its mean loss


@cache
def defined(number: str) -> dict[str, object]:
    """The names that the definition cells of a chapter leave behind."""
    return namespace(chapter(number))


def outcome(version: Version, make_model: Callable[[], nn.Module], window: list) -> torch.Tensor:
    """Loss and every gradient, as one vector."""
    model = make_model()
    loss_mean = version(model, window)
    gradients = [parameter.grad.flatten() for parameter in model.parameters()]
    return torch.cat([torch.tensor([loss_mean], dtype=torch.float64), *gradients])


def distances(versions: dict[str, Version], make_model, window: list) -> dict[str, float]:
    """How far each version is from the first, relative to it."""
    vectors = {name: outcome(v, make_model, window) for name, v in versions.items()}
    reference = next(iter(vectors.values()))
    return {name: relative_error(vector, reference) for name, vector in vectors.items()}


def whole(loss_sum, count) -> Version:
    """PyTorch alone: the window as one batch, one backward."""

    def version(model, window):
        batch = tuple(torch.cat(parts) for parts in zip(*window, strict=True))
        loss = loss_sum(model, batch) / count(batch)
        loss.backward()
        return loss.item()

    return version


def helper(loss_sum, count) -> Version:
    return lambda model, window: accumulate.accumulate_gradients(model, window, loss_sum, count)


SAMPLES = (problems.classification_loss_sum, problems.count_samples)
TOKENS = (problems.token_loss_sum, problems.count_tokens)


def mlp():
    return problems.make_mlp((64, 16, 10), dtype=torch.float64)


def gpt():
    return problems.make_gpt(seed=0, width=16, depth=1, heads=2, context=32, dtype=torch.float64)


def digits_window(micro_batch_size: int) -> list:
    images, labels = problems.digits(torch.float64).train
    return list(accumulate.split_batch((images[:26], labels[:26]), micro_batch_size))


def lines_window() -> list:
    """Micro-batches of padded lines, so that each counts a different number of tokens."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(96, (8, 33), generator=generator)
    targets = tokens[:, 1:].clone()
    for row, length in enumerate((32, 3, 17, 1, 30, 9, 2, 25)):
        targets[row, length:] = problems.IGNORE_INDEX
    return list(accumulate.split_batch((tokens[:, :-1], targets), 3))


@pytest.mark.parametrize("micro_batch_size", [1, 8, 26], ids="micro_{}".format)
def test_03_accumulation(micro_batch_size):
    built = defined("03")
    window = digits_window(micro_batch_size)
    images, labels = problems.digits(torch.float64).train
    cut = built["cut"]((images[:26], labels[:26]), micro_batch_size)
    assert all(
        torch.equal(mine, theirs)
        for pair in zip(cut, window, strict=True)
        for mine, theirs in zip(*pair, strict=True)
    )
    versions = {
        "PyTorch": whole(*SAMPLES),
        "chapter": lambda model, window: built["accumulate"](model, window, *SAMPLES),
        "helper": helper(*SAMPLES),
    }
    assert max(distances(versions, mlp, window).values()) <= EXACT


@pytest.mark.parametrize("length", [0, 3, 8, 10])
def test_03_windows(length):
    mine = list(defined("03")["windows"](range(length), 4))
    assert mine == list(accumulate.windows(range(length), 4))


def test_03_sums_in_another_precision():
    window, model, other = digits_window(8), mlp().bfloat16(), mlp().bfloat16()
    window = [(images.bfloat16(), labels) for images, labels in window]
    sums = defined("03")["accumulate_in"](torch.float32, model, window, *SAMPLES)
    accumulator = accumulate.GradientAccumulator(other.parameters(), dtype=torch.float32)
    total = sum(map(problems.count_samples, window))
    for micro_batch in window:
        (problems.classification_loss_sum(other, micro_batch) / total).backward()
        accumulator.add()
    accumulator.assign()
    for mine, parameter in zip(sums, other.parameters(), strict=True):
        assert torch.equal(mine.to(parameter.grad.dtype), parameter.grad)


def test_04_the_true_mean():
    versions = {
        "PyTorch": whole(*TOKENS),
        "chapter": defined("04")["backward_true_mean"],
        "helper": helper(*TOKENS),
    }
    assert max(distances(versions, gpt, lines_window()).values()) <= EXACT


def test_a_wrong_version_is_told_apart():
    """The negative control of this file: mean of means, and a sum divided by K + 1."""

    def too_small(model, window):
        loss = accumulate.accumulate_gradients(model, window, *TOKENS)
        for parameter in model.parameters():
            parameter.grad *= len(window) / (len(window) + 1)
        return loss

    versions = {
        "PyTorch": whole(*TOKENS),
        "mean of means": defined("04")["backward_mean_of_means"],
        "K + 1": too_small,
    }
    found = distances(versions, gpt, lines_window())
    assert found["mean of means"] > 1e-3
    assert found["K + 1"] > 1e-3


def step(model: nn.Module, window: list) -> None:
    accumulate.accumulate_gradients(model, window, *SAMPLES)
    torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9).step()


def test_02_live_bytes():
    """The chapter's meter sees what LiveBytes sees: the peak of a step, to the byte."""
    window = digits_window(8)
    peaks = []
    for meter in (defined("02")["Meter"](), memory.LiveBytes()):
        gc.collect()
        with meter:
            step(mlp(), window)
        peaks.append(meter.peak_bytes)
    assert peaks[0] == peaks[1] > 0


def sums(openings) -> list[tuple[int, int, float]]:
    """Every rank must call this: rank, world size, and 1 + 2 + ... over the ranks, each way."""
    found = []
    for opening in openings:
        with opening():
            rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
            total = torch.tensor(float(rank + 1))
            torch.distributed.all_reduce(total)
            found.append((rank, world_size, total.item()))
    return found


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_01_a_process_group(ranks):
    openings = [defined("01")["group_by_hand"], process_group]
    expected = [[(rank, ranks, ranks * (ranks + 1) / 2)] * 2 for rank in range(ranks)]
    assert launch.run_function(sums, openings, nproc_per_node=ranks) == expected


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("num_samples", [0, 3, 12, 13])
def test_06_shares(num_samples, drop_last):
    built = defined("06")
    for epoch, world_size in ((0, 1), (2, 4), (5, 5)):
        order = built["order_of_epoch"](num_samples, 7, epoch)
        for rank in range(world_size):
            mine = built["share"](order, rank, world_size, drop_last)
            arguments = (range(num_samples), world_size, rank, True, 7, drop_last)
            for make in (sampler.DistributedSampler, torch.utils.data.DistributedSampler):
                other = make(*arguments)
                other.set_epoch(epoch)
                assert mine == list(other)


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_07_fit(noise):
    """Latency and bandwidth from bytes and seconds, exact and disturbed."""
    link = Link(2e-3, 0.05)
    sizes = (1, 1_000, 100_000, 400_000, 3_000_000)
    samples = [
        (size, link.message_s(size) * (1 + noise * (-1) ** index))
        for index, size in enumerate(sizes)
    ]
    latency_s, gb_per_s = defined("07")["fit"](samples)
    fitted = cost_model.fit_link([(1, size, seconds) for size, seconds in samples])
    assert latency_s == pytest.approx(fitted.latency_s, rel=1e-9)
    assert gb_per_s == pytest.approx(fitted.bandwidth_gb_per_s, rel=1e-9)
    error = max(abs(latency_s / 2e-3 - 1), abs(gb_per_s / 0.05 - 1))
    assert error < (0.1 if noise else 1e-9)
    assert noise == 0 or error > 1e-4  # the control: a disturbance is seen


@pytest.mark.parametrize(("ranks", "length"), [(2, 7), (3, 1000), (4, 3)])
def test_08_all_reduces(ranks, length):
    names = [f"all_reduce_{name}" for name in ("gather_broadcast", "tree", "ring")]
    versions = [torch.distributed.all_reduce]
    for name in names:
        versions += [defined("08")[name], getattr(collectives, name)]

    def summed() -> list[torch.Tensor]:  # in here, so that ranks need not import this module
        with process_group(timeout_s=10) as ranks:
            generator = torch.Generator().manual_seed(ranks.rank)
            tensor = torch.randn(length, dtype=torch.float64, generator=generator)
            found = [tensor.clone() for _ in versions]
            for all_reduce, each in zip(versions, found, strict=True):
                all_reduce(each)
            torch.distributed.barrier()
            return found

    by_rank = launch.run_function(summed, nproc_per_node=ranks)
    for reference, *sums in by_rank:
        assert max(relative_error(each, reference) for each in sums) <= EXACT
        assert all(torch.equal(a, b) for a, b in zip(sums[::2], sums[1::2], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(by_rank[0][1:], by_rank[-1][1:], strict=True))


def averaged(builds) -> list[torch.Tensor]:
    """Every rank must call this: what each way to build leaves behind."""
    with process_group(timeout_s=20) as ranks:
        return [averaged_by(build, ranks) for build in builds]


def averaged_by(build, ranks) -> torch.Tensor:
    """Parameters and averaged gradients, from unlike starts."""
    module = problems.make_mlp((64, 12, 10), seed=ranks.rank, dtype=torch.float64)
    module.register_buffer("offset", torch.tensor(float(ranks.rank)))
    model = build(module)
    images, labels = problems.split(
        tuple(x[:24] for x in problems.digits(torch.float64).train),
        ranks.rank,
        ranks.world_size,
    )
    problems.classification_loss_sum(model, (images, labels)).backward()
    getattr(model, "average_gradients", int)()  # others average within backward
    tensors = [*module.parameters(), *(p.grad for p in module.parameters()), module.offset]
    return torch.cat([x.detach().double().flatten() for x in tensors])


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_05_data_parallel(ranks):
    versions = defined("05")["DataParallelSmall"], DataParallelNaive
    by_rank = launch.run_function(averaged, versions, nproc_per_node=ranks)
    for found in (vector for vectors in by_rank for vector in vectors):
        assert relative_error(found, by_rank[0][0]) <= EXACT


@pytest.mark.parametrize("ranks", [2, 4])
def test_10_data_parallel(ranks):
    built = defined("10")

    def small_buckets(module: nn.Module) -> list:
        return plan_buckets(list(module.parameters())[::-1], 4_000)

    def overlapped(module: nn.Module) -> nn.Module:
        return built["DataParallelOverlapped"](module, small_buckets(module))

    def in_buckets(module: nn.Module) -> nn.Module:
        model = DataParallelNaive(module)  # for its broadcast
        model.average_gradients = lambda: built["average_in_buckets"](small_buckets(module))
        return model

    torch_s = nn.parallel.DistributedDataParallel
    versions = torch_s, overlapped, in_buckets, DataParallelFlat, DistributedDataParallel
    for reference, *found in launch.run_function(averaged, versions, nproc_per_node=ranks):
        assert max(relative_error(each, reference) for each in found) <= EXACT
        assert ranks > 2 or all(torch.equal(each, reference) for each in found)
