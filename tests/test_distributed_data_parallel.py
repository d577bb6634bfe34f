"""The class against torch's, bit for bit, and against one process at 1e-12 in float64."""

import functools
import itertools

import pytest
import torch
from ddp_parity import (
    SMALL_CAP_MB,
    MixedDtypes,
    Oddities,
    Ours,
    PartlyUsed,
    Undefined,
    assert_close,
    assert_none,
    assert_same_bits,
    both,
    mlp,
    run_checks,
    train,
)

from helpers import problems
from helpers.compare import assert_replicas_equal, relative_error
from helpers.launch import run_function

FLOAT32 = {"dtype": torch.float32}
VIEWS = [{"gradient_as_bucket_view": views} for views in (False, True)]
KINDS = [{}, {"find_unused_parameters": True}, {"static_graph": True}]
OPTIONS = [views | kind for views, kind in itertools.product(VIEWS, KINDS)]


def conv(seed: int):
    model = problems.make_conv(seed=seed, norm="batch")
    return model.to(memory_format=torch.channels_last)


def partly_used(rank: int):
    model = PartlyUsed(rank)
    model.rank = rank
    return model


#: How to make it, how to train it, whether all is used in each step
MODELS = {
    "mlp": (functools.partial(mlp, dtype=torch.float32), FLOAT32, True),
    "batch norm, channels_last": (conv, FLOAT32, True),
    "oddities": (Oddities, {}, True),
    "mixed dtypes": (MixedDtypes, FLOAT32, True),
    "partly used": (partly_used, {}, False),
    "undefined gradient": (Undefined, FLOAT32, True),
}
#: Where sums may differ in their order: some roundings of the model's dtype (bfloat16: 8 bits)
TOLERANCES = dict.fromkeys(MODELS, 1e-5) | {"mixed dtypes": 1e-2}


def check_bits(ranks, name: str, options_list=OPTIONS):
    """The bits of every step with 2 ranks, where a + b = b + a; with more, once buckets are alike.

    In rings of unlike buckets sums differ in their order. Torch's class plans its buckets anew
    after the first step, with a static graph after the second, and never where it looks for
    unused parameters. Until then the parameters stay as they are.
    """
    make, how, uses_all = MODELS[name]
    for number, options in enumerate(options_list):
        finds, is_static = (options.get(x) for x in ("find_unused_parameters", "static_graph"))
        if not finds and not uses_all:
            continue
        first = 0 if ranks.world_size == 2 else 2 if is_static else 1
        how = how | {"set_to_none": number % 3 != 1, "num_dry": first}
        wrapped = both(make, ranks.rank, bucket_cap_mb=SMALL_CAP_MB, **options)
        stock, ours = (train(model, ranks.rank, ranks.world_size, **how) for model in wrapped)
        if finds and ranks.world_size > 2:
            assert relative_error(ours, stock) < TOLERANCES[name]
        else:
            assert_same_bits(ours, stock, first, str(options))


def check_one_process(ranks, options_list=OPTIONS, caps=(SMALL_CAP_MB, None)):
    """Each kind of wrapper, many buckets and few, with gradients kept or dropped."""
    cases = itertools.product(options_list, caps, (False, True))
    for (make, expected), (options, cap, set_to_none) in itertools.product(
        expected_alone().items(), cases
    ):
        model = Ours(make(ranks.rank), bucket_cap_mb=cap, **options)
        assert_replicas_equal(model)
        found = train(model, ranks.rank, ranks.world_size, set_to_none=set_to_none)
        assert_close(found, expected, f"{make.__name__} {options} {cap} {set_to_none}")
        assert_replicas_equal(model)


@functools.cache
def expected_alone() -> dict:
    return {make: train(make(0)) for make in (mlp, Oddities)}


def value_checks(world_size: int) -> dict:
    options, caps = (OPTIONS, (SMALL_CAP_MB, None)) if world_size == 2 else (OPTIONS[1::2], [None])
    checks = {
        f"bits, {name}": functools.partial(check_bits, name=name, options_list=options)
        for name in MODELS
    }
    alone = functools.partial(check_one_process, options_list=options, caps=caps)
    return checks | {"one process": alone}


@pytest.mark.parametrize("world_size", [2, 4])
def test_gradients(world_size):
    checks = value_checks(world_size)
    assert_none(run_function(run_checks, checks, nproc_per_node=world_size))
