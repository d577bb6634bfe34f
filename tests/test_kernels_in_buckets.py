"""DistributedDataParallel with its kernels, as on GPUs: interpreted, and compared with torch's."""

import functools
import itertools

import torch
import torch.distributed as dist
from ddp_parity import (
    SMALL_CAP_MB,
    Oddities,
    Ours,
    PartlyUsed,
    assert_none,
    assert_same_bits,
    both,
    loss_of,
    mlp,
    named,
    run_checks,
    train,
)
from kernel_checks import interpreted

from helpers.data_parallel import DataParallelFlat, DataParallelNaive
from helpers.data_parallel.filling import PackedFilling

FLOAT32 = torch.float32
VIEWS = [{"gradient_as_bucket_view": views} for views in (False, True)]
make_mlp = functools.partial(mlp, dtype=FLOAT32)


def partly_used(rank: int) -> PartlyUsed:
    model = PartlyUsed(rank, dtype=FLOAT32)
    model.rank = rank
    return model


def check_same_bits(ranks, make, kind):
    for options, set_to_none in itertools.product(VIEWS, (True, False)):
        found = []
        for model in both(make, ranks.rank, bucket_cap_mb=SMALL_CAP_MB, **options, **kind):
            found.append(train(model, ranks.rank, 2, set_to_none=set_to_none, dtype=FLOAT32))
            if isinstance(model, Ours):
                assert isinstance(model._reducer._filling, PackedFilling)
        assert_same_bits(*found[::-1], what=f"{kind} {options} {set_to_none}")


def all_used(ranks):
    check_same_bits(ranks, make_mlp, {})


def frozen_tied_transposed_channels_last(ranks):
    check_same_bits(ranks, functools.partial(Oddities, dtype=FLOAT32), {})


def some_unused(ranks):
    check_same_bits(ranks, partly_used, {"find_unused_parameters": True})


def static_graph(ranks):
    check_same_bits(ranks, make_mlp, {"static_graph": True})


def hooks_see_undivided_gradients(ranks):
    def halved(group, bucket):
        work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
        return work.get_future().then(lambda done: done.value()[0] / 2)

    found = []
    for model in both(make_mlp, ranks.rank, bucket_cap_mb=SMALL_CAP_MB):
        model.register_comm_hook(None, halved)
        found.append(train(model, ranks.rank, 2, dtype=FLOAT32))
    assert_same_bits(*found[::-1])


def quiet_backwards_add_up(ranks):
    for options in VIEWS:
        gradients = []
        for model in both(make_mlp, ranks.rank, **options):
            with model.no_sync():
                loss_of(lambda x, m=model: m(x.float()), ranks, 0).backward()
            loss_of(lambda x, m=model: m(x.float()), ranks, 1).backward()
            gradients.append([p.grad.clone() for p in model.parameters()])
        assert all(map(torch.equal, *gradients))


def flat_is_naive(ranks):
    found = [
        train_once(wrap(make_mlp(ranks.rank)), ranks)
        for wrap in (DataParallelNaive, DataParallelFlat)
    ]
    assert all(map(torch.equal, *found))


def train_once(model, ranks):
    loss_of(lambda x: model(x.float()), ranks).backward()
    model.average_gradients()
    return [parameter.grad for parameter in model.parameters()]


CHECKS = named(
    all_used,
    frozen_tied_transposed_channels_last,
    some_unused,
    static_graph,
    hooks_see_undivided_gradients,
    quiet_backwards_add_up,
    flat_is_naive,
)


def test_packed_buckets_have_the_bits_of_torchs_class():
    assert_none(interpreted(run_checks, CHECKS, ranks=2))


def test_a_kernel_that_forgets_the_share_is_red():
    mutant = ("pack", "scale * ", "")
    failed = interpreted(run_checks, named(all_used, flat_is_naive), mutant=mutant, ranks=2)
    assert [list(by_rank) for by_rank in failed] == [["all_used"]] * 2
