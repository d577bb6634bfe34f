"""All-reduce by hand: the sum, the same bits on every rank, messages and bytes as theory says."""

import functools
import hashlib
import math
import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn

from helpers import collectives, cost_model
from helpers.collectives import ALGORITHMS, calls
from helpers.launch import run_function
from helpers.process_group import process_group
from helpers.traffic import Traffic, count_traffic

WORLDS = (1, 2, 3, 4, 5, 8)
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64)
DIVISIBLE = 840  # by every world of WORLDS


def values_of(rank: int, length: int, dtype: torch.dtype) -> torch.Tensor:
    """Whole numbers, whose sums are exact in every dtype."""
    return ((torch.arange(length) * 3) % 7 + rank).to(dtype)


def expected_sum(ranks, length: int, dtype: torch.dtype) -> torch.Tensor:
    return sum(values_of(rank, length, torch.int64) for rank in ranks).to(dtype)


def expected_traffic(name: str, length: int, dtype: torch.dtype, rank: int, n: int) -> Traffic:
    """What this rank sends and receives by theory; a message of nothing is not sent."""
    rounds = cost_model.schedule(name, length * dtype.itemsize, n, element_bytes=dtype.itemsize)
    messages = [message for each in rounds for message in each if message.size_bytes]
    sent = [message.size_bytes for message in messages if message.sender == rank]
    received = [message.size_bytes for message in messages if message.receiver == rank]
    return Traffic({}, 0, len(sent), sum(sent), len(received), sum(received))


def lengths_of(n: int, dtype: torch.dtype) -> list[int]:
    most = (0, 1, n - 1, n, n + 1, DIVISIBLE + n // 2, DIVISIBLE)
    return sorted(set(most if dtype == torch.float64 else (n + 1, DIVISIBLE)))


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def run_all_cases() -> dict:
    """Each algorithm x dtype x length: wrong cases, digests of random sums, number of calls."""
    wrong, bits, closed, num_calls = [], {}, {}, 0
    with process_group() as ranks:
        rank, n = ranks.rank, ranks.world_size
        for name, all_reduce in ALGORITHMS.items():
            for dtype in DTYPES:
                for length in lengths_of(n, dtype):
                    tensor = values_of(rank, length, dtype)
                    with count_traffic() as traffic:
                        result = all_reduce(tensor)
                    num_calls += 1
                    is_right = torch.equal(tensor, expected_sum(range(n), length, dtype))
                    theory = expected_traffic(name, length, dtype, rank, n)
                    if result is not None or not is_right or traffic != theory:
                        wrong.append((name, dtype, length, tensor, traffic, theory))
                torch.manual_seed(rank)
                tensor = (torch.randn(DIVISIBLE + 1) * 100).to(dtype)
                all_reduce(tensor)
                bits[name, str(dtype)] = digest(tensor)
            tensor = torch.ones(DIVISIBLE, dtype=torch.float64)
            with count_traffic() as traffic:
                all_reduce(tensor)
            share = traffic.bytes_sent / (8 * DIVISIBLE)
            closed[name] = traffic.messages, share, traffic.bytes_received / (8 * DIVISIBLE)
    return {"wrong": wrong, "bits": bits, "closed": closed, "calls": num_calls}


@functools.cache
def results_of(world_size: int) -> list[dict]:
    return run_function(run_all_cases, nproc_per_node=world_size)


@pytest.mark.parametrize("world_size", WORLDS)
def test_sum_messages_and_bytes_of_every_length_and_dtype(world_size):
    for rank, found in enumerate(results_of(world_size)):
        assert not found["wrong"], (rank, found["wrong"][0])


@pytest.mark.parametrize("world_size", WORLDS)
def test_every_rank_has_the_same_bits(world_size):
    first, *others = results_of(world_size)
    assert len(first["bits"]) == len(ALGORITHMS) * len(DTYPES)
    assert all(other["bits"] == first["bits"] for other in others)


@pytest.mark.parametrize("n", WORLDS)
def test_messages_and_bytes_are_those_of_the_closed_forms(n):
    """(messages sent, bytes sent / size, bytes received / size), the size being divisible."""
    found = [result["closed"] for result in results_of(n)]
    ring = 2 * (n - 1) / n
    for of_rank in found:
        assert of_rank["ring"] == (2 * (n - 1), ring, ring)
    assert found[0]["gather_broadcast"] == (n - 1, n - 1, n - 1)
    assert all(of_rank["gather_broadcast"] == (1, 1, 1) for of_rank in found[1:])
    assert sum(of_rank["tree"][0] for of_rank in found) == 2 * (n - 1)
    assert found[0]["tree"] == (math.ceil(math.log2(n)),) * 3
    if math.log2(n).is_integer():
        levels = int(math.log2(n))
        for of_rank in found:
            assert of_rank["doubling"] == (levels, levels, levels)
            assert of_rank["halving_doubling"] == (2 * levels, ring, ring)


def test_table_of_what_was_run():
    """A line an algorithm; shown by pytest -rA or -s."""
    dtypes = " ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
    lengths = f"0 1 n-1 n n+1 {DIVISIBLE}+n//2 {DIVISIBLE}"
    for name in ALGORITHMS:
        print(f"{name:16} worlds {' '.join(map(str, WORLDS))} | lengths {lengths} | {dtypes}")
    num_calls = sum(found["calls"] for n in WORLDS for found in results_of(n)[:1])
    print(f"{num_calls} all-reduces on each rank, all with the sum, messages and bytes of theory")
    assert num_calls == len(ALGORITHMS) * sum(
        len(lengths_of(n, dtype)) for n in WORLDS for dtype in DTYPES
    )


# strides, sub-groups, chunks, several in flight, large


def strided(rank: int) -> dict[str, torch.Tensor]:
    """Views of many kinds into tensors whose other elements must stay as they are."""
    base = torch.arange(48.0) + rank
    return {
        "a column": base.clone().view(6, 8)[:, 3],
        "every second": base.clone()[::2],
        "transposed": base.clone().view(6, 8).T,
        "transposed on rank 0": base.clone().view(6, 8).T
        if rank == 0
        else base.view(6, 8).T.contiguous(),
        "channels last": base.clone().view(2, 3, 2, 4).to(memory_format=torch.channels_last),
        "no dimension": base.clone()[5],
        "a block": base.clone().view(6, 8)[1:5, 2:6],
        "no elements": base.clone().view(6, 8)[:, :0],
    }


def wrong_strides(rank: int, n: int) -> list:
    wrong = []
    for name, all_reduce in ALGORITHMS.items():
        expected = {key: sum(strided(r)[key] for r in range(n)) for key in strided(0)}
        for key, view in strided(rank).items():
            base = view if view._base is None else view._base
            strides, before = view.stride(), base.clone()
            all_reduce(view)
            is_right = torch.equal(view, expected[key]) and view.stride() == strides
            view.copy_(strided(rank)[key])  # then all of the base must be as before
            if not is_right or not torch.equal(base, before):
                wrong.append((name, key, view))
    return wrong


def wrong_in_group(rank: int, members: list[int]) -> list:
    """Sums and traffic within a sub-group: its own ranks, not those of the world."""
    wrong = []
    group = dist.new_group(members)
    for name, all_reduce in ALGORITHMS.items() if rank in members else ():
        tensor = values_of(rank, 10, torch.float64)
        with count_traffic(group) as traffic:
            all_reduce(tensor, group)
        here, n = members.index(rank), len(members)
        is_right = torch.equal(tensor, expected_sum(members, 10, torch.float64))
        if not is_right or traffic != expected_traffic(name, 10, torch.float64, here, n):
            wrong.append((name, members, tensor, traffic))
    dist.barrier()
    return wrong


def check_strides_and_groups() -> list:
    with process_group(timeout_s=20) as ranks:
        wrong = wrong_strides(ranks.rank, ranks.world_size)
        for members in ([1, 2, 4], [0, 3], [2]):
            wrong += wrong_in_group(ranks.rank, members)
    return wrong


def test_any_strides_and_sub_groups():
    assert run_function(check_strides_and_groups, nproc_per_node=5) == [[]] * 5


def wrong_halves(rank: int, n: int, length: int) -> list:
    wrong = []
    given = values_of(rank, length, torch.float64)
    whole, chunks = given.clone(), expected_sum(range(n), length, torch.float64).tensor_split(n)
    output = torch.full_like(chunks[rank], -1)
    with count_traffic() as traffic:
        collectives.reduce_scatter_ring(output, whole, check=True)
    if not torch.equal(output, chunks[rank]) or not torch.equal(whole, given):
        wrong.append(("reduce-scatter", length, output))
    if length % n == 0 and traffic.bytes_sent != 8 * (n - 1) * length / n:
        wrong.append(("bytes", length, traffic))
    whole = torch.full((2 * length,), -1.0, dtype=torch.float64)[::2]
    work = collectives.all_gather_ring(whole, output, async_op=True)
    if not work.wait() or not torch.equal(whole, torch.cat(chunks)):
        wrong.append(("all-gather", length, whole))
    return wrong


def check_halves_of_the_ring() -> list:
    """reduce_scatter_ring and all_gather_ring: chunk r belongs to rank r, whatever the length."""
    with process_group() as ranks:
        rank, n = ranks.rank, ranks.world_size
        wrong = []
        for length in (0, 1, n - 1, n + 1, 12 * n):
            wrong += wrong_halves(rank, n, length)
        with pytest.raises(ValueError, match=rf"rank {rank}: output: found 3 elements of .*32 on"):
            collectives.reduce_scatter_ring(torch.zeros(3), torch.zeros(4 * n))
        with pytest.raises(ValueError, match=rf"rank {rank}: input: found 3 elements of .*float64"):
            collectives.all_gather_ring(torch.zeros(3 * n), torch.zeros(3).double())
    return wrong


def test_reduce_scatter_and_all_gather_give_chunk_r_to_rank_r():
    assert run_function(check_halves_of_the_ring, nproc_per_node=3) == [[]] * 3


def check_in_flight() -> dict:
    """Calls that overlap: their order of waiting is free, and a thread may be late."""
    found = {}
    with process_group() as ranks:
        rank, n = ranks.rank, ranks.world_size
        lengths = [1 + 977 * index % 5000 for index in range(15)]
        tensors = [values_of(rank, length, torch.float64) for length in lengths]
        with count_traffic() as traffic:
            works = [
                list(ALGORITHMS.values())[index % 5](tensor, async_op=True)
                for index, tensor in enumerate(tensors)
            ]
        for work in works[::-1]:
            work.wait()
        found["right"] = all(
            torch.equal(tensor, expected_sum(range(n), len(tensor), torch.float64))
            for tensor in tensors
        )
        found["work"] = [
            isinstance(works[0], dist.Work),
            all(work.is_completed() and work.is_success() for work in works),
            works[3].get_future().value()[0] is tensors[3],
            works[3].result()[0] is tensors[3],
        ]
        per_call = [
            expected_traffic(list(ALGORITHMS)[index % 5], length, torch.float64, rank, n)
            for index, length in enumerate(lengths)
        ]
        found["counted"] = traffic.bytes_sent == sum(each.bytes_sent for each in per_call)
        found["tags"] = late_threads(rank)
        calls.next_tag = lambda group: 7  # the mutant; this process ends soon
        found["one tag"] = late_threads(rank)
    return found


def late_threads(rank: int) -> list[float]:
    """Two swaps in flight; rank 0's first is held back until its second is over."""
    is_over = threading.Event()

    def swap(flat, peers, number):
        if rank == 0 and number == 0:
            is_over.wait(10)
        incoming = torch.empty_like(flat)
        peers.exchange(flat, 1 - rank, incoming, 1 - rank)
        flat += incoming
        if number == 1:
            is_over.set()

    tensors, works = [torch.tensor([1.0]), torch.tensor([100.0])], []
    for number, tensor in enumerate(tensors):
        steps = functools.partial(swap, number=number)
        works.append(calls.sum_in_place("swap", steps, tensor, None, True, False))
        time.sleep(0.1)  # so that rank 1 posts in the order of calls
    for work in works:
        work.wait()
    return [tensor.item() for tensor in tensors]


def test_calls_in_flight_do_not_mix_because_of_their_tags():
    for found in run_function(check_in_flight):
        assert found["right"]
        assert all(found["work"]), found["work"]
        assert found["counted"]
        assert found["tags"] == [2, 200]
        assert found["one tag"] == [101, 101], "mutant: one tag for all mixes sums"


def sum_64_mb() -> list[str]:
    wrong = []
    with process_group() as ranks:
        for name, all_reduce in ALGORITHMS.items():
            tensor = torch.full((16_000_001,), float(ranks.rank))
            all_reduce(tensor)
            if not bool((tensor == 6).all()):
                wrong.append(name)
    return wrong


def test_64_megabytes_do_not_deadlock():
    assert run_function(sum_64_mb, nproc_per_node=4) == [[]] * 4


# as others use it


def ddp_gradients(algorithm: str | None) -> tuple[list, Traffic]:
    """Gradients of torch's DistributedDataParallel after two steps, its all-reduce ours."""
    torch.manual_seed(0)
    layers = [nn.Linear(64, 64, dtype=torch.float64) for _ in range(6)]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.05)

    def hook(_, bucket):
        n = dist.get_world_size()
        work = collectives.all_reduce(bucket.buffer(), algorithm=algorithm, async_op=True)
        return work.get_future().then(lambda future: future.value()[0] / n)

    if algorithm:
        model.register_comm_hook(None, hook)
    torch.manual_seed(dist.get_rank())
    for _ in range(2):
        model.zero_grad()
        with count_traffic() as traffic:
            model(torch.randn(4, 64, dtype=torch.float64)).square().sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters()], traffic


def check_under_ddp() -> dict:
    with process_group():
        expected, plain = ddp_gradients(None)
        found = {}
        for algorithm in (*ALGORITHMS, "auto"):
            grads, traffic = ddp_gradients(algorithm)
            error = max((a - b).abs().max().item() for a, b in zip(grads, expected, strict=True))
            found[algorithm] = error, traffic
        scale = max(grad.abs().max().item() for grad in expected)
    return {"found": found, "plain": plain, "scale": scale}


def test_torch_ddp_trains_alike_on_our_algorithms():
    for result in run_function(check_under_ddp, nproc_per_node=3):
        num_buckets = result["plain"].collectives["all_reduce"]
        assert num_buckets >= 3
        for algorithm, (error, traffic) in result["found"].items():
            assert error < 1e-14 * result["scale"], algorithm
            assert traffic.collectives["all_reduce"] == 0
        assert result["found"]["ring"][1].messages == num_buckets * 4
