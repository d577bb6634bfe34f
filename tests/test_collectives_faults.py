"""What is refused, what differs between ranks, who dies: named, on every rank, in time."""

import os
import re
import signal
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from helpers.collectives import ALGORITHMS, all_reduce, all_reduce_ring, calls
from helpers.collectives import doubling as doubling_module
from helpers.collectives import ring as ring_module
from helpers.collectives import tree as tree_module
from helpers.collectives.peers import Peers
from helpers.launch import run_function
from helpers.process_group import process_group
from helpers.traffic import count_traffic

# refused


class Tagged(torch.Tensor):
    """A tensor that is more than its numbers."""


def of_dtensor() -> torch.Tensor:
    """One whose numbers are spread over the ranks; all that is here is its own part."""
    from torch.distributed.tensor import DeviceMesh, Shard, distribute_tensor

    return distribute_tensor(torch.ones(4), DeviceMesh("cpu", [0]), [Shard(0)])


def refusals() -> dict:
    leaf = torch.zeros(3, requires_grad=True)
    return {
        "tensor: found list": [1.0],
        "tensor: found torch.sparse_coo": torch.eye(2).to_sparse(),
        "expected torch.view_as_real": torch.zeros(2, dtype=torch.complex64),
        "tensor: found torch.bool": torch.ones(2, dtype=torch.bool),
        "tensor: found torch.float8_e5m2": torch.ones(2).to(torch.float8_e5m2),
        "requires grad": leaf,
        "requires grad, which no sum": leaf * 2,
        "an expanded tensor": torch.ones(1).expand(3),
        "found it on meta, expected cpu": torch.ones(2, device="meta"),
        r"tensor: found a DTensor, expected a plain tensor \(see DTensor.to_local\)": of_dtensor(),
        "tensor: found a Tagged, expected a plain tensor": torch.ones(2).as_subclass(Tagged),
    }


@pytest.mark.filterwarnings("ignore:.*sparse.*")
def test_what_cannot_be_summed_is_refused_by_name():
    with process_group():
        for message, tensor in refusals().items():
            for function in (all_reduce, *ALGORITHMS.values()):
                with pytest.raises(ValueError, match=message):
                    function(tensor)
        with pytest.raises(ValueError, match="found 'rings', expected auto or one of"):
            all_reduce(torch.ones(2), algorithm="rings")
        parameter = torch.nn.Parameter(torch.ones(3))
        with torch.no_grad():
            all_reduce(parameter)
        with torch.inference_mode():
            frozen = torch.ones(3)
        assert all_reduce(frozen, async_op=True).wait()
        with pytest.raises(ValueError, match="this process is not in the group"):
            all_reduce(torch.ones(2), dist.GroupMember.NON_GROUP_MEMBER)
    with pytest.raises(RuntimeError, match="no process group is open"):
        all_reduce(torch.ones(2))


def differ(rank: int) -> dict:
    """One thing that differs between the ranks -> (algorithm, this rank's tensor)."""
    lengths, dtypes = (4, 5, 4), (torch.float32, torch.float32, torch.float64)
    return {
        "length": ("ring", torch.ones(lengths[rank])),
        "shape": ("ring", torch.ones((2, 3) if rank else (3, 2))),
        "dtype": ("auto", torch.ones(4, dtype=dtypes[rank])),
        "algorithm": (("ring", "tree", "ring")[rank], torch.ones(4)),
        "device": ("ring", torch.ones(4, device="meta" if rank == 1 else "cpu")),
        "kind": ("ring", torch.eye(2).to_sparse() if rank == 2 else torch.ones(2, 2)),
    }


def check_differences() -> dict:
    found = {}
    with process_group() as ranks:
        for name, (algorithm, tensor) in differ(ranks.rank).items():
            try:
                all_reduce(tensor, algorithm=algorithm, check=True)
            except ValueError as error:
                found[name] = str(error)
            good = torch.ones(4)
            all_reduce(good, algorithm="tree", check=True)  # the group is as good as before
            assert good.tolist() == [3] * 4
        number = torch.tensor([1, 2**60 + ranks.rank])
        all_reduce_ring(number)
        found["int64"] = number.tolist()
        try:
            number /= ranks.world_size  # a mean of whole numbers
        except RuntimeError as error:
            found["mean"] = str(error)
    return found


@pytest.mark.filterwarnings("ignore:.*sparse.*")
def test_ranks_that_differ_are_named_on_every_rank():
    first, *others = run_function(check_differences, nproc_per_node=3)
    assert all(other == first for other in others)
    assert first["length"] == (
        "ranks do not call alike. ranks 0, 2: ring, shape (4,), torch.float32, cpu; "
        "rank 1: ring, shape (5,), torch.float32, cpu"
    )
    assert "rank 0: ring, shape (3, 2)" in first["shape"]
    assert re.search(r"ranks 0, 1: \w+, .*float32.* rank 2: \w+, .*float64", first["dtype"])
    assert "ranks 0, 2: ring" in first["algorithm"]
    assert "rank 1: tree" in first["algorithm"]
    assert "rank 1: tensor: found it on meta, expected cpu" in first["device"]
    assert "rank 2: tensor: found torch.sparse_coo" in first["kind"]
    assert first["int64"] == [3, 3 * 2**60 + 3], "exact, where float64 would round"
    assert "can't be cast" in first["mean"]


# a rank that dies, a rank that does not come

TIMEOUT_S = 8


def die_in_third_step(rank: int, is_async: bool) -> tuple[str, float]:
    """All-reduce by a ring of 4, in which rank 2 is killed; return the error and its seconds."""
    exchange = Peers.exchange

    def exchange_or_die(self, *arguments):
        if rank == 2 and self._step == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        exchange(self, *arguments)

    Peers.exchange = exchange_or_die  # this process ends soon
    with process_group(timeout_s=TIMEOUT_S):
        start_s = time.monotonic()
        try:
            work = all_reduce_ring(torch.ones(1 << 20), async_op=is_async)
            work.wait() if is_async else None
        except ConnectionError as error:
            return str(error), time.monotonic() - start_s
    return "no error", 0.0


def survive() -> tuple[str, float]:
    """What a rank sees; rank 2 is a child, so that its death does not end the job."""
    rank = int(os.environ["RANK"])
    if rank == 2:
        child = os.fork()
        if child:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0.0
        os.environ["TORCHELASTIC_RUN_ID"] = "child"  # its own connection to the store
    return die_in_third_step(rank, is_async=rank == 3)


def test_a_rank_that_dies_in_a_ring_ends_the_others_who_name_it():
    (first, *seconds0), (second, *seconds1), (died, _), (fourth, *seconds3) = run_function(
        survive, nproc_per_node=4
    )
    assert died == -signal.SIGKILL
    assert second.startswith("rank 1, ring, step 3: no message to rank 2; has it ended")
    assert re.match(r"rank 3, ring, step [34]: no message from rank 2; has it ended", fourth)
    assert re.match(r"rank 0, ring, step \d: no message (to rank 1|from rank 3); has it", first)
    # At once as a rule; gloo may miss that a peer has gone, and then its timeout ends the wait.
    assert max(*seconds0, *seconds1, *seconds3) < TIMEOUT_S + 5


def wait_for_absent() -> tuple[str, float] | None:
    with process_group(timeout_s=20) as ranks:
        group = dist.new_group([0, 2], timeout=timedelta(seconds=1))
        dist.barrier()
        result = None
        if ranks.rank == 2:
            start_s = time.monotonic()
            with pytest.raises(ConnectionError) as caught:
                all_reduce(torch.ones(4), group, algorithm="doubling")
            result = str(caught.value), time.monotonic() - start_s
        dist.barrier()
    return result


def test_a_rank_that_does_not_come_is_named_by_group_and_world():
    *_, (message, seconds) = run_function(wait_for_absent, nproc_per_node=3)
    assert message.startswith(
        "rank 1 of the group (global rank 2), doubling, step 1: no message to rank 0; has it ended"
    )
    assert 0.9 < seconds < 10


# mutants: the checks below must accept the algorithms and refuse each of these


def is_right(steps, length: int = 24) -> tuple[bool, bool]:
    """Does it give the sum; does it send as many bytes as a ring at most?"""
    rank, n = dist.get_rank(), dist.get_world_size()
    tensor = torch.arange(length, dtype=torch.float64) + 100 * rank
    expected = n * torch.arange(length, dtype=torch.float64) + 100 * sum(range(n))
    with count_traffic() as traffic:
        calls.sum_in_place("mutant", steps, tensor, None, False, False)
    return torch.equal(tensor, expected), traffic.bytes_sent <= 2 * (n - 1) / n * tensor.nbytes


def ring_off_by_one_chunk(flat, peers):
    chunks = flat.tensor_split(peers.world_size)
    ring_module.reduce_scatter(chunks, peers, first=peers.rank)
    ring_module.all_gather(chunks, peers, first=peers.rank)  # + 1 forgotten


def ring_one_step_short(flat, peers):
    chunks = flat.tensor_split(peers.world_size)
    ring_module.reduce_scatter(chunks, peers, first=peers.rank)
    rank, world_size = peers.rank, peers.world_size
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    for step in range(world_size - 2):
        outgoing, incoming = ((rank + shift - step) % world_size for shift in (1, 0))
        peers.exchange(chunks[outgoing], right, chunks[incoming], left)


def ring_without_chunks(flat, peers):
    """The right sum by too many bytes: whole tensors go round."""
    right, left = (peers.rank + 1) % peers.world_size, (peers.rank - 1) % peers.world_size
    outgoing, incoming = flat.clone(), torch.empty_like(flat)
    for _ in range(peers.world_size - 1):
        peers.exchange(outgoing, right, incoming, left)
        flat += incoming
        outgoing, incoming = incoming, outgoing


def tree_forgets_a_child(flat, peers):
    """Rank 0 leaves out its last child, which therefore has no parent."""
    forgotten = tree_module.family(0, peers.world_size)[1][-1]

    def family(rank, world_size):
        parent, children = right_family(rank, world_size)
        known = [child for child in children if child != forgotten]
        return None if rank == forgotten else parent, known

    right_family, tree_module.family = tree_module.family, family
    try:
        tree_module.tree(flat, peers)
    finally:
        tree_module.family = right_family


def doubling_without_fold(flat, peers):
    num_paired = 1 << (peers.world_size.bit_length() - 1)
    if peers.rank < num_paired:
        doubling_module.doubling.__wrapped__(flat, peers, num_paired)


WRONG_SUMS = (ring_off_by_one_chunk, ring_one_step_short, tree_forgets_a_child)


def check_mutants() -> dict:
    with process_group() as ranks:
        steps = [ring_module.ring, tree_module.tree, doubling_module.doubling]
        found = {each.__name__: is_right(each) for each in (*steps, *WRONG_SUMS)}
        found["without chunks"] = is_right(ring_without_chunks)
        if ranks.world_size == 3:
            found["without fold"] = is_right(doubling_without_fold)
        average = torch.full((4,), float(ranks.rank))
        all_reduce_ring(average)
        mean = sum(range(ranks.world_size)) / ranks.world_size
        found["divided"] = bool((average / ranks.world_size == mean).all())
        found["not divided"] = bool((average == mean).all())
    return found


@pytest.mark.parametrize("world_size", [3, 4])
def test_mutants_are_seen(world_size):
    results = run_function(check_mutants, nproc_per_node=world_size)
    for found in results:
        assert found["ring"] == (True, True)
        assert found["tree"][0]
        assert found["doubling"][0]
        assert found["divided"]
        assert not found["not divided"]
        assert found["without chunks"] == (True, False), "seen by its bytes alone"
    for mutant in (*(each.__name__ for each in WRONG_SUMS), "without fold"):
        if mutant in results[0]:
            assert not all(found[mutant][0] for found in results), mutant
