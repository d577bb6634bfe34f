"""process_group: worlds, backends, devices, and environments that are only half set."""

import os
import re

import pytest
import torch
import torch.distributed as dist

from helpers import process_group as module
from helpers.launch import RankFailed, run_function
from helpers.process_group import TORCHRUN_VARIABLES, Ranks, process_group


@pytest.fixture(autouse=True)
def no_torchrun(monkeypatch):
    for name in TORCHRUN_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_without_torchrun_the_world_is_one_process_with_a_one_line_hint(capsys):
    with process_group() as ranks:
        total = torch.ones(3)
        dist.all_reduce(total)
        assert total.tolist() == [1.0] * 3
    assert (ranks.rank, ranks.local_rank, ranks.world_size) == (0, 0, 1)
    hint = capsys.readouterr().err
    assert hint.count("\n") == 1
    assert "torchrun --nproc-per-node 2" in hint
    assert not dist.is_initialized()


def test_every_rank_knows_its_place():
    def where():
        with process_group() as ranks:
            return ranks.rank, ranks.local_rank, ranks.world_size, ranks.backend, ranks.device.type

    assert run_function(where, nproc_per_node=3) == [(r, r, 3, "gloo", "cpu") for r in range(3)]


def test_groups_may_follow_one_another_many_times():
    def sums():
        found = []
        for opening in range(10):
            with process_group() as ranks:
                total = torch.tensor([opening + ranks.rank])
                dist.all_reduce(total)
                found.append(total.item())
        return found

    assert run_function(sums, nproc_per_node=4) == [[4 * i + 6 for i in range(10)]] * 4


@pytest.mark.parametrize("given", [{"WORLD_SIZE": "4"}, {"RANK": "0", "WORLD_SIZE": "2"}])
def test_half_an_environment_is_refused_at_once_by_name(monkeypatch, given):
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    missing = ", ".join(name for name in TORCHRUN_VARIABLES if name not in given)
    with pytest.raises(RuntimeError, match=re.escape(missing)), process_group():
        pass


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("RANK", "x", "RANK is 'x' and WORLD_SIZE is '2'"),
        ("RANK", "2", "RANK is '2' and WORLD_SIZE is '2'"),
        ("LOCAL_RANK", "7", "LOCAL_RANK is '7' and LOCAL_WORLD_SIZE is '2'"),
    ],
)
def test_an_environment_that_contradicts_itself_is_refused_at_once(
    monkeypatch, name, value, message
):
    whole = dict(zip(TORCHRUN_VARIABLES, ("0", "2", "0", "2", "127.0.0.1", "1"), strict=True))
    for each, number in (whole | {name: value}).items():
        monkeypatch.setenv(each, number)
    with pytest.raises(RuntimeError, match=message), process_group():
        pass


def test_bad_arguments_are_refused_with_what_was_found():
    with pytest.raises(ValueError, match="unknown backend 'mpi'"), process_group(backend="mpi"):
        pass
    for wrong in (0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="timeout_s is"), process_group(timeout_s=wrong):
            pass


def test_nccl_without_enough_gpus_says_how_many_there_are(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with (
        pytest.raises(RuntimeError, match="found 0 for 1 ranks"),
        process_group(backend="nccl"),
    ):
        pass


@pytest.mark.parametrize(
    ("num_gpus", "local_world_size", "backend", "expected"),
    [
        (0, 2, None, ("gloo", "cpu")),
        (4, 4, None, ("cpu:gloo,cuda:nccl", "cuda:1")),
        (8, 2, None, ("cpu:gloo,cuda:nccl", "cuda:1")),
        (2, 4, None, ("gloo", "cpu")),  # more ranks than GPUs
        (4, 4, "gloo", ("gloo", "cpu")),
        (4, 4, "nccl", ("nccl", "cuda:1")),
    ],
)
def test_backend_and_device_follow_the_gpus_of_this_host(
    monkeypatch, num_gpus, local_world_size, backend, expected
):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    chosen, device = module._choose(backend, 1, local_world_size)
    assert (chosen, str(device)) == expected


def test_more_ranks_than_gpus_says_so_once(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for local_rank in range(4):
        module._choose(None, local_rank, 4)
    assert capsys.readouterr().err == "2 GPUs for 4 ranks: using gloo on the CPU\n"


def test_a_rank_that_never_opens_makes_the_others_raise():
    def open_on_rank_0():
        if os.environ["RANK"] == "0":
            with process_group(timeout_s=2):
                pass

    with pytest.raises(RankFailed) as caught:
        run_function(open_on_rank_0)
    assert caught.value.rank == 0


def test_ranks_cannot_be_changed():
    with pytest.raises(AttributeError):
        Ranks(0, 0, 1, torch.device("cpu"), "gloo").rank = 1


def test_a_group_outlives_its_block_where_torchs_reducer_holds_it():
    """The reducer frees its group under Python's lock: it must never be the last to hold it."""
    with process_group():
        wrapper = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
        group = torch.distributed.group.WORLD
    assert module._closed == [group]
    del wrapper
    with process_group():
        pass
    assert module._closed == []
