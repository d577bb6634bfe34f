"""Any all-reduce underneath: Part II's, shared memory, an emulated link; and how many messages."""

import functools

import pytest
import torch
import torch.distributed as dist
from ddp_parity import (
    SMALL_CAP_MB,
    Ours,
    Stock,
    assert_close,
    assert_none,
    batches,
    loss_of,
    mlp,
    named,
    run_checks,
    train,
)
from torch import nn

from helpers import shared_memory
from helpers.buckets import plan_buckets
from helpers.collectives import ALGORITHMS, all_reduce
from helpers.launch import run_function
from helpers.link import Link
from helpers.process_group import process_group
from helpers.traffic import count_traffic

TRANSPORTS = {
    **ALGORITHMS,
    "auto": all_reduce,
    "shared memory": shared_memory.all_reduce,
    "torch's": dist.all_reduce,
}
LINK = Link(5e-3, 0.02)


def assert_one_process(found) -> None:
    assert_close(found, train(mlp()))


def every_transport(ranks):
    """Equal to one process with each, whichever way the gradients lie."""
    for number, (name, function) in enumerate(TRANSPORTS.items()):
        model = Ours(
            mlp(ranks.rank),
            bucket_cap_mb=SMALL_CAP_MB,
            gradient_as_bucket_view=bool(number % 2),
            find_unused_parameters=number % 3 == 0,
            all_reduce=function,
        )
        try:
            assert_one_process(train(model, ranks.rank, ranks.world_size))
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


def every_transport_with_joins(ranks):
    """A rank that has no more inputs answers by the same algorithm."""
    for function in TRANSPORTS.values():
        model = Ours(mlp(ranks.rank), bucket_cap_mb=SMALL_CAP_MB, all_reduce=function)
        with model.join():
            for _ in range(1 + ranks.rank):
                model(batches()[0][0]).sum().backward()
        assert not model._reducer.is_under_way


def messages(ranks):
    """One all-reduce a bucket and step; one broadcast for the rebuild; nothing else."""
    model = Ours(mlp(ranks.rank), bucket_cap_mb=SMALL_CAP_MB)
    num_bytes = sum(parameter.nbytes for parameter in model.parameters())
    for step in range(4):
        with count_traffic() as traffic:
            one_step(model, ranks)
        num_buckets = len(model.buckets)
        assert num_buckets >= 2
        assert dict(traffic.collectives) == {"all_reduce": num_buckets} | (
            {"broadcast": 1} if step == 1 else {}
        )
        order_bytes = traffic.payload_bytes - num_bytes
        assert order_bytes == 0 if step != 1 else 0 < order_bytes < 200


def messages_by_hand(ranks):
    """A ring's messages: 2 (n - 1) for each bucket; the same bytes as in one message."""
    n = ranks.world_size
    model = Ours(mlp(ranks.rank), bucket_cap_mb=SMALL_CAP_MB, all_reduce=ALGORITHMS["ring"])
    for _ in range(3):
        one_step(model, ranks)
    with count_traffic() as traffic:
        one_step(model, ranks)
    assert traffic.messages == 2 * (n - 1) * len(model.buckets)
    num_bytes = sum(parameter.nbytes for parameter in model.parameters())
    assert traffic.bytes_sent == pytest.approx(2 * (n - 1) / n * num_bytes, rel=0.02)
    assert not traffic.collectives["all_reduce"]


def one_step(model, ranks) -> None:
    model.zero_grad()
    loss_of(model, ranks).backward()


def plans(ranks):
    """A plan of one's own is followed, before and after the order is known; by a link too."""
    one_each = [Ours(mlp(ranks.rank), plan=lambda parameters: [[p] for p in parameters])]
    ready_s = [0.001 * number for number in range(6)]
    by_link = functools.partial(plan_buckets, link=LINK, ready_s=ready_s)
    for model in (*one_each, Ours(mlp(ranks.rank), plan=by_link)):
        assert_one_process(train(model, ranks.rank, ranks.world_size))
        last = list(model.module.parameters())[-2:]
        assert model.buckets[0].parameters[0] in {*last}, "the last layer's gradients come first"
    assert len(one_each[0].buckets) == 6


def buckets_are_as_torchs(ranks):
    """The sizes that torch's logger gives, after both classes have seen the order."""
    for cap in (None, 0.1, 0.3):
        sizes = []
        for wrap in (Stock, Ours):
            layers = [nn.Linear(128, 128, bias=False) for _ in range(20)]
            model = wrap(nn.Sequential(*layers), bucket_cap_mb=cap)
            for _ in range(3):
                model(torch.ones(1, 128)).sum().backward()
            if wrap is Ours:
                sizes.append([bucket.buffer.nbytes for bucket in model.buckets])
            else:
                data = model._get_ddp_logging_data()
                sizes.append([int(size) for size in data["rebuilt_bucket_sizes"].split(", ")])
        assert sizes[0] == sizes[1], f"cap {cap}: torch {sizes[0]}, ours {sizes[1]}"


CHECKS = {
    2: named(
        every_transport, every_transport_with_joins, messages, messages_by_hand, plans,
        buckets_are_as_torchs,
    ),
    3: named(every_transport, messages_by_hand),
}  # fmt: skip


@pytest.mark.parametrize("world_size", CHECKS)
def test_transports(world_size):
    assert_none(run_function(run_checks, CHECKS[world_size], nproc_per_node=world_size))


def on_a_link() -> int:
    """The numbers are one process's; return how many all-reduces the link counted in a step."""
    with process_group(backend=LINK) as ranks:
        assert_one_process(train(Ours(mlp(ranks.rank)), ranks.rank, ranks.world_size))
        by_ring = Ours(mlp(ranks.rank), all_reduce=ALGORITHMS["ring"])
        assert_one_process(train(by_ring, ranks.rank, ranks.world_size))
        model = Ours(mlp(ranks.rank), bucket_cap_mb=SMALL_CAP_MB)
        for _ in range(2):
            one_step(model, ranks)
        with count_traffic() as traffic:
            one_step(model, ranks)
        assert len(model.buckets) == traffic.collectives["all_reduce"]
        return traffic.collectives["all_reduce"]


def test_an_emulated_link():
    assert run_function(on_a_link) == [2, 2]
