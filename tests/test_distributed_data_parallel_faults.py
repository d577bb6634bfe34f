"""A rank that raises in forward, in backward, in a hook or in the optimizer ends all, by name."""

import os

import pytest
import torch
from ddp_parity import SMALL_CAP_MB, Ours, batches, mlp
from torch import nn

from helpers.launch import RankFailed, run_function
from helpers.process_group import process_group

GROUP_TIMEOUT_S, TIMEOUT_S = 20, 50
PLACES = ("forward", "backward", "comm hook", "gradient hook", "optimizer")


class Breaks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise ArithmeticError("broke in backward")


class Model(nn.Module):
    """Breaks in forward or in the middle of backward, where it is told to."""

    def __init__(self, place: str):
        super().__init__()
        self.first, self.last, self.place = mlp(), nn.Linear(10, 10).double(), place

    def forward(self, inputs):
        hidden = self.first(inputs)
        if self.place == "forward":
            raise ArithmeticError("broke in forward")
        if self.place == "backward":
            hidden = Breaks.apply(hidden)
        return self.last(hidden)


def break_in(where: str):
    def broken(*_):
        raise ArithmeticError(f"broke in {where}")

    return broken


class Switch:
    """A communication hook that raises at the second bucket once it is switched on."""

    __name__ = "switch"

    is_on = False

    def __call__(self, state, bucket):
        if self.is_on and bucket.index() == 1:
            raise ArithmeticError("broke in comm hook")
        return torch.distributed.all_reduce(bucket.buffer(), async_op=True).get_future()


def train_and_break(place: str, folder: str) -> None:
    """Two good steps, then a third in which the last rank breaks; each rank leaves its pid."""
    rank = int(os.environ["RANK"])
    with open(os.path.join(folder, f"{rank}"), "w") as file:
        file.write(str(os.getpid()))
    with process_group(timeout_s=GROUP_TIMEOUT_S) as ranks:
        model = Ours(Model(""), bucket_cap_mb=SMALL_CAP_MB)
        is_last = ranks.rank == ranks.world_size - 1
        if place == "comm hook":
            model.register_comm_hook(None, hook := Switch())
        for step in range(4):
            if step == 2 and is_last:
                model.module.place = place
                if place == "comm hook":
                    hook.is_on = True
                if place == "gradient hook":
                    model.module.first[0].weight.register_hook(break_in(place))
            loss = model(batches()[step][0]).sum()
            loss.backward()
            if step == 2 and is_last and place == "optimizer":
                break_in(place)()
            model.zero_grad()


@pytest.mark.parametrize(
    ("place", "world_size"), [*((place, 2) for place in PLACES), ("backward", 4)]
)
def test_every_rank_ends_and_the_cause_is_named(place, world_size, tmp_path):
    """Not the time-out, nor the errors of those that lost their peer: the first one's own."""
    options = {"nproc_per_node": world_size, "timeout_s": TIMEOUT_S}
    with pytest.raises(RankFailed) as caught:
        run_function(train_and_break, place, str(tmp_path), **options)
    failed = caught.value
    assert (failed.rank, failed.exception_type) == (world_size - 1, "ArithmeticError")
    assert failed.message == f"broke in {place}"
    assert_gone([int(path.read_text()) for path in tmp_path.iterdir()], world_size)


def assert_gone(pids: list[int], world_size: int) -> None:
    assert len(pids) == world_size
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
