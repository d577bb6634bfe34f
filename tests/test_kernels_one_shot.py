"""The one-shot all-reduce between processes: the same bits as its reference, whoever is late."""

import re
import sys
import time

import kernel_checks as checks
import pytest
import torch
import torch.distributed as dist
from kernel_checks import interpreted

from helpers import kernels
from helpers.kernels import reference
from helpers.kernels.workspace import MAX_ROUNDS, workspace_of
from helpers.launch import RankFailed
from helpers.process_group import process_group

START = "_wait(workspaces, lane, rank, 2 * round_number + 1, late, patience, WORLD_SIZE)"
END = "_wait(workspaces, lane, rank, 2 * round_number + 2, late, patience, WORLD_SIZE)"

ROUNDS = [
    (1, torch.float32),
    (1025, torch.bfloat16),
    (0, torch.float32),
    (300, torch.float16),
    *[(300, torch.float32)] * 3,
]


def rounds(late_rank: int | None = None, dawdles: bool = False) -> None:
    """Sums of several lengths and dtypes, one after the other, all equal to the reference's.

    late_rank: comes later than the others, each time. dawdles: it stops between its signal and
    its reading, when the others could be on their way to the next round.
    """
    if dawdles:
        checks.load_changed("one_shot", "total = tl.zeros", "pause()\n    total = tl.zeros")
    with process_group() as ranks:
        is_late = ranks.rank == late_rank
        if dawdles:
            module = sys.modules["helpers.kernels.jit.one_shot"]
            module.pause = (lambda: time.sleep(0.1)) if is_late else (lambda: None)
        tensors = [
            checks.numbers(length, dtype, seed=10 * turn + ranks.rank)
            for turn, (length, dtype) in enumerate(ROUNDS)
        ]
        sums = [tensor.clone() for tensor in tensors]
        for total in sums:
            if is_late and not dawdles:
                time.sleep(0.05)
            kernels.all_reduce_one_shot(total)
        for tensor, total in zip(tensors, sums, strict=True):
            reference.all_reduce_one_shot(tensor)
            checks.same(total, tensor)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_every_rank_has_the_bits_of_the_reference(world_size):
    interpreted(rounds, ranks=world_size)


@pytest.mark.parametrize("late_rank", [0, 1])
@pytest.mark.parametrize("dawdles", [False, True], ids=["comes late", "reads late"])
def test_whoever_is_late_is_waited_for(late_rank, dawdles):
    interpreted(rounds, late_rank, dawdles, ranks=2)


@pytest.mark.parametrize(
    ("wait", "dawdles"), [(START, False), (END, True)], ids=["before reading", "after reading"]
)
def test_a_missing_barrier_is_red(wait, dawdles):
    with pytest.raises(RankFailed, match="elements differ"):
        interpreted(rounds, 1, dawdles, mutant=("one_shot", wait, "pass"), ranks=2)


def strides_and_sums() -> None:
    """Any strides; added in float32 and rounded once, NaN and infinities carried through."""
    with process_group() as ranks:
        gaps = checks.numbers(40, torch.bfloat16, seed=ranks.rank).view(5, 8)[:, ::2]
        expected = gaps.float()
        dist.all_reduce(expected)
        kernels.all_reduce_one_shot(gaps)
        checks.same(gaps, expected.bfloat16())
        odd = torch.tensor([float("nan"), float("inf"), 1.0]) * (1 - ranks.rank)
        kernels.all_reduce_one_shot(odd)
        assert odd.isnan().tolist() == [True, True, False]
        large = checks.numbers(300_000, seed=ranks.rank)  # more than the workspace holds at first
        expected = large.clone()
        reference.all_reduce_one_shot(expected)
        kernels.all_reduce_one_shot(large)
        checks.same(large, expected)


def test_strides_special_values_and_a_workspace_that_grows():
    interpreted(strides_and_sums, ranks=2)


def no_end_of_rounds() -> None:
    with process_group() as ranks:
        for step in range(4):
            tensor = torch.full((3,), ranks.rank + 1.0)
            kernels.all_reduce_one_shot(tensor)
            assert tensor.tolist() == [3.0] * 3, step
            space = workspace_of(dist.group.WORLD, tensor.device, 12)
            space.num_rounds = MAX_ROUNDS - 1 if step == 0 else space.num_rounds


def test_rounds_may_go_on_for_ever():
    interpreted(no_end_of_rounds, ranks=2)


def one_never_comes() -> str:
    with process_group() as ranks:
        kernels.all_reduce_one_shot(torch.ones(3))
        said = ""
        if ranks.rank == 0:
            for _ in range(2):  # and then it stays so
                with pytest.raises(TimeoutError) as raised:
                    kernels.all_reduce_one_shot(torch.ones(3), timeout_s=0.2)
                said += f"{raised.value}\n"
        dist.barrier()
        return said


def test_a_rank_that_never_comes_is_named_and_nobody_hangs():
    said, _ = interpreted(one_never_comes, ranks=2)
    assert len(re.findall("rank 0 has waited in vain for rank 1;", said)) == 2


def refusals_and_float64() -> None:
    with process_group() as ranks:
        for timeout_s in (0, -1, float("nan"), float("inf")):
            with pytest.raises(ValueError, match=f"found timeout_s={timeout_s}, expected"):
                kernels.all_reduce_one_shot(torch.ones(3), timeout_s=timeout_s)
        groups = [dist.new_group([rank]) for rank in range(2)]
        with pytest.raises(ValueError, match="not in the group"):
            kernels.all_reduce_one_shot(torch.ones(3), groups[1 - ranks.rank])
        for tensor, said in ((torch.ones(3).long(), "torch.int64"), (torch.eye(2).to_sparse(), "")):
            with pytest.raises(TypeError, match=said):
                kernels.all_reduce_one_shot(tensor)
        tensor = checks.numbers(7, seed=ranks.rank).double()
        expected = tensor.clone()
        dist.all_reduce(expected)
        kernels.all_reduce_one_shot(tensor)
        assert torch.allclose(tensor, expected, rtol=1e-15)


def test_refusals_and_float64():
    interpreted(refusals_and_float64, ranks=2)
