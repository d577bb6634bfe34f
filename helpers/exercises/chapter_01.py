"""Checks of chapter 01: where a rank lives, a collective under an `if`, a sum that is named."""

from collections.abc import Callable

import torch
import torch.distributed as dist

from helpers.exercises.checking import Wrong, exercise, expect_close
from helpers.process_group import Ranks, process_group


@exercise("01-place")
def check_place(place: Callable[[int, int], tuple[int, int]]) -> None:
    """place(rank, local_world_size) -> (host, local_rank). Local."""
    for local_world_size in (1, 2, 3, 8):
        expected = [(host, local) for host in range(3) for local in range(local_world_size)]
        for rank, where in enumerate(expected):
            found = place(rank, local_world_size)
            if tuple(found) != where or not all(isinstance(number, int) for number in found):
                raise Wrong(
                    f"rank {rank} with {local_world_size} processes a host: "
                    f"found {tuple(found)}, expected {where}"
                )


@exercise("01-mean", ranks=True)
def check_mean(mean_on_rank_0: Callable[[torch.Tensor, Ranks], float | None]) -> None:
    """mean_on_rank_0(loss, ranks) -> the mean over all ranks on rank 0, None elsewhere.

    Every rank must call this.
    """
    with process_group(backend="gloo", timeout_s=4) as ranks:
        loss = torch.tensor(2.0 + 3.0 * ranks.rank, dtype=torch.float64, device=ranks.device)
        before = loss.clone()
        found = _joined(mean_on_rank_0, loss, ranks)
        if not torch.equal(loss, before):
            raise Wrong(f"the loss that was given is {loss.item():g} now, expected it unchanged")
        if ranks.rank == 0:
            if found is None:
                raise Wrong("rank 0 returned None, expected the mean")
            expect_close(found, 2.0 + 1.5 * (ranks.world_size - 1), "the mean")
        elif found is not None:
            raise Wrong(f"returned {found}, expected None on every rank but 0")


@exercise("01-named", ranks=True)
def check_named(all_reduce_named: Callable[[torch.Tensor, str], None]) -> None:
    """all_reduce_named(tensor, name): a sum in place, refused where names differ.

    Every rank must call this.
    """
    with process_group(backend="gloo", timeout_s=4) as ranks:
        tensor = torch.tensor([1.0, float(ranks.rank)], device=ranks.device)
        _joined(all_reduce_named, tensor, "gradient")
        n = ranks.world_size
        expected = [float(n), n * (n - 1) / 2]
        expect_close(tensor, expected, "a sum that all ranks name alike")
        for odd_one in range(n) if n > 1 else ():
            _check_refused(all_reduce_named, ranks, odd_one)


def _check_refused(all_reduce_named: Callable, ranks: Ranks, odd_one: int) -> None:
    """Rank `odd_one` names another sum: every rank must say so and none may have added."""
    is_odd_one = ranks.rank == odd_one
    tensor = torch.full((1,), 10.0 if is_odd_one else 1.0, device=ranks.device)
    before = tensor.clone()
    try:
        _joined(all_reduce_named, tensor, "metric" if is_odd_one else "gradient")
    except ValueError as refusal:
        missing = [name for name in ("gradient", "metric") if name not in str(refusal)]
        if missing:
            raise Wrong(f"the error does not name {' and '.join(missing)}: {refusal}") from None
        if not torch.equal(tensor, before):
            raise Wrong(f"refused, but the tensor is {tensor.item():g} by then") from None
    else:
        raise Wrong(
            f"rank {odd_one}'s metric met gradients and no error came: "
            f"the tensor is {tensor.item():g}"
        )


def _joined(solution: Callable, *arguments: object) -> object:
    """The solution's result; Wrong where a collective of it was left alone by another rank."""
    try:
        return solution(*arguments)
    except RuntimeError as error:
        is_lost = isinstance(error, dist.DistBackendError) or "gloo" in str(error)
        if not is_lost:
            raise
        raise Wrong("a collective failed here: another rank did not enter it") from error
