"""Each operation is counted once, with its payload, wherever in the process it was called."""

import math
import threading
import time
import warnings
from collections import Counter

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.launch import run_function
from helpers.link import Link
from helpers.process_group import process_group
from helpers.traffic import Traffic, carried, count_traffic, record


def calls(rank: int, world_size: int) -> dict:
    """One call of each function: label -> (function, name, payload in bytes); x has 16 bytes."""
    x, whole = torch.ones(4), torch.ones(4 * world_size)
    parts = list(whole.chunk(world_size))
    on_root = parts if rank == 0 else None
    total = 16 * world_size
    return {
        "all_reduce": (lambda: dist.all_reduce(x), "all_reduce", 16),
        "async": (lambda: dist.all_reduce(x, async_op=True).wait(), "all_reduce", 16),
        "broadcast": (lambda: dist.broadcast(x, 0), "broadcast", 16),
        "reduce": (lambda: dist.reduce(x, 0), "reduce", 16),
        "all_gather": (lambda: dist.all_gather(parts, x), "all_gather", total),
        "into": (lambda: dist.all_gather_into_tensor(whole, x), "all_gather", total),
        "reduce_scatter": (lambda: dist.reduce_scatter(x, parts), "reduce_scatter", total),
        "tensor": (lambda: dist.reduce_scatter_tensor(x, whole), "reduce_scatter", total),
        "gather": (lambda: dist.gather(x, on_root), "gather", total),
        "scatter": (lambda: dist.scatter(x, on_root), "scatter", total),
        "all_to_all": (lambda: dist.all_to_all_single(whole, whole + 1), "all_to_all", total),
        "barrier": (dist.barrier, "barrier", 0),
        "empty": (lambda: dist.all_reduce(x[:0]), "all_reduce", 0),
        "strided": (lambda: dist.all_reduce(whole.view(-1, 2)[:, 0]), "all_reduce", total // 2),
    }


def count_each(link: Link | None) -> dict:
    found = {}
    with process_group(backend=link) as ranks, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for label, (call, name, payload) in calls(ranks.rank, ranks.world_size).items():
            with count_traffic() as traffic:
                call()
            found[label] = traffic == Traffic({name: 1}, payload) or traffic
    return found


@pytest.mark.parametrize("link", [None, Link(1e-6, math.inf)], ids=["gloo", "link"])
def test_every_collective_is_counted_once_with_the_whole_vector(link):
    for found in run_function(count_each, link, nproc_per_node=3):
        assert all(value is True for value in found.values()), found


def exchange(rank: int, world_size: int, tag: int = 0) -> None:
    sent, received = torch.ones(5), torch.empty(5)
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    pair = dist.P2POp(dist.isend, sent, right, tag=tag), dist.P2POp(dist.irecv, received, left)
    pair[1].tag = tag
    for work in dist.batch_isend_irecv(list(pair)):
        work.wait()


def count_messages_and_threads() -> dict:
    with process_group() as ranks:
        rank, world_size = ranks.rank, ranks.world_size
        with count_traffic() as here:
            exchange(rank, world_size)
            dist.send(torch.ones(2), 1) if rank == 0 else dist.recv(torch.ones(2))
        with count_traffic() as carrier:
            thread = threading.Thread(target=carried(exchange), args=(rank, world_size, 1))
        thread.start()  # after the block: counted by those active where it was handed over
        thread.join()
        with count_traffic() as inline:
            carried(exchange)(rank, world_size, 2)  # not twice on this thread
        with count_traffic() as plain:
            thread = threading.Thread(target=exchange, args=(rank, world_size, 3))
            thread.start()
            thread.join()
    return {"here": here, "carried": carrier, "inline": inline, "plain": plain}


def test_messages_are_counted_at_both_ends_and_in_threads():
    first, second = run_function(count_messages_and_threads)
    one = Traffic(messages=1, bytes_sent=20, messages_received=1, bytes_received=20)
    assert first["here"] == Traffic({}, 0, 2, 28, 1, 20)
    assert second["here"] == Traffic({}, 0, 1, 20, 2, 28)
    assert first["carried"] == first["inline"] == second["carried"] == second["inline"] == one
    assert first["plain"] == Traffic(), "negative control: another's thread is not counted"


def count_ddp(bucket_cap_mb: float | None) -> list[Traffic]:
    """Counts of making torch's DistributedDataParallel, of three steps, and of `no_sync`."""
    layers = [nn.Linear(256, 256, bias=False) for _ in range(8)]  # 256 KiB each
    found = []
    with count_traffic() as start:
        model = nn.Sequential(*layers)
        model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=bucket_cap_mb)
    for _ in range(3):
        with count_traffic() as step:
            model(torch.ones(2, 256)).sum().backward()
        found.append(step)
    with count_traffic() as quiet, model.no_sync():
        model(torch.ones(2, 256)).sum().backward()
    return [start, *found, quiet]


NUM_BUCKETS = {0.5: 4, None: 2, 100: 1}  # bucket_cap_mb: how many of 8 x 256 KiB


def count_ddps(link: Link | None) -> dict:
    with process_group(backend=link):
        return {cap: count_ddp(cap) for cap in NUM_BUCKETS}


@pytest.mark.parametrize("link", [None, Link(1e-6, math.inf)], ids=["gloo", "link"])
def test_the_reducer_of_torch_is_counted_bucket_by_bucket(link):
    for by_cap in run_function(count_ddps, link):
        for cap, (start, _, second, third, quiet) in by_cap.items():
            num_buckets = {"all_reduce": NUM_BUCKETS[cap]}
            assert start.collectives["broadcast"] >= 1
            assert second.collectives == num_buckets | {"broadcast": 2}, "the order of buckets"
            assert third == Traffic(num_buckets, 8 * 256 * 1024)
            assert quiet == Traffic()


def count_and_raise(x: torch.Tensor) -> Traffic:
    try:
        with count_traffic() as broken:
            dist.all_reduce(x)
            dist.broadcast(x, 99)  # refused
    except RuntimeError:
        return broken


def count_nested_and_filtered() -> dict:
    with process_group(timeout_s=10) as ranks:
        pair = dist.new_group([0, 1])
        x, found = torch.ones(4), {}
        with count_traffic() as outer:
            dist.all_reduce(x)
            with count_traffic(pair) as of_pair, count_traffic(dist.group.WORLD) as of_world:
                dist.all_reduce(x)
                dist.all_reduce(x, op=dist.ReduceOp.MAX)
                if ranks.rank < 2:
                    dist.broadcast(x, group=pair, group_src=0)
                    record("all_gather", 100, pair)
                record("barrier", 0)
        found["nested"] = outer, of_pair, of_world
        found["broken"] = count_and_raise(x)
        dist.all_reduce(x)
        record("all_reduce", 16)  # no counter: nobody is told
        dist.barrier()
    return found


def test_nested_blocks_count_all_inside_and_a_group_its_own():
    results = run_function(count_nested_and_filtered, nproc_per_node=3)
    for rank, found in enumerate(results):
        outer, of_pair, of_world = found["nested"]
        assert of_world == Traffic({"all_reduce": 2, "barrier": 1}, 32)
        in_pair = rank < 2
        assert of_pair == (
            Traffic({"broadcast": 1, "all_gather": 1}, 116) if in_pair else Traffic()
        )
        assert outer.payload_bytes == 48 + 116 * in_pair
        assert outer.collectives == of_world.collectives + of_pair.collectives + Counter(
            all_reduce=1
        )
        assert found["broken"] == Traffic({"all_reduce": 1}, 16)


def test_record_knows_its_names():
    with pytest.raises(ValueError, match="'allreduce', expected one of"):
        record("allreduce", 4)


class Empty(TorchDispatchMode):
    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        return operator(*args, **(kwargs or {}))


def cpu_s_of_operators(context) -> float:
    x = torch.ones(4)
    with context:
        start = time.thread_time()
        for _ in range(300):
            x = x + 1
        return time.thread_time() - start


def test_other_operators_pay_for_the_mode_and_no_more():
    counted = sorted(cpu_s_of_operators(count_traffic()) for _ in range(5))
    mode_alone = sorted(cpu_s_of_operators(Empty()) for _ in range(5))
    assert counted[0] < 2 * mode_alone[0], (counted, mode_alone)
