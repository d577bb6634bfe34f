"""Checks of chapter 13: the noise scale from windows of unequal sizes; a plan in samples."""

import math
from collections.abc import Callable, Sequence

from helpers.exercises.checking import Wrong, exercise, expect_close


def _norms(small: int, big: int, trace: float, squared: float) -> tuple[int, float, int, float]:
    """What two batch sizes have on average."""
    return small, squared + trace / small, big, squared + trace / big


@exercise("13-noise")
def noise(noise_scale_of: Callable[[Sequence], float]) -> None:
    """noise_scale_of(pairs): tr(S) / |G|^2, both averaged over windows of unequal sizes."""
    one = [_norms(16, 128, 6.0, 0.5)]
    expect_close(noise_scale_of(one), 12.0, "the noise scale of one window")
    # Windows that scatter: traces 4, 10, 4 and squares 1, -0.5, 0.7 have the means 6 and 0.4.
    scattered = [(16, 128, 4.0, 1.0), (16, 64, 10.0, -0.5), (8, 32, 4.0, 0.7)]
    found = noise_scale_of([_norms(*each) for each in scattered])
    expect_close(found, 15.0, "the noise scale of three windows", 1e-9)
    for squared in (0.0, -0.25):
        found = noise_scale_of([_norms(16, 128, 6.0, squared)] * 2)
        if found != math.inf:
            raise Wrong(f"|G|^2 is {squared} on average: found {found}, expected inf")


PLAN = {"num_samples": 1000, "epochs": 3, "warm_up_samples": 500, "base_batch": 32, "base_lr": 0.1}


@exercise("13-plan")
def plan(replan: Callable) -> None:
    """replan(...): updates, updates of warm-up, learning rate for any K and W."""
    for micro, k, world_size, power in ((8, 1, 1, 1), (8, 4, 1, 1), (8, 4, 4, 0.5), (16, 2, 8, 1)):
        batch = micro * k * world_size
        ways = {"micro_batch_size": micro, "num_micro_batches": k, "world_size": world_size}
        updates, warm_up, lr = replan(*PLAN.values(), power, **ways)
        where = f"with K = {k}, W = {world_size} and micro-batches of {micro}"
        expect_close(updates, 3 * (1000 // batch), f"the number of updates {where}")
        expect_close(warm_up, -(-500 // batch), f"the number of updates of warm-up {where}")
        expect_close(lr, 0.1 * (batch / 32) ** power, f"the learning rate {where}", 1e-9)
    too_many = {"micro_batch_size": 8, "num_micro_batches": 8, "world_size": 16}
    try:
        found = replan(*PLAN.values(), 1, **too_many)
    except ValueError:
        return
    raise Wrong(f"a global batch of 1024 out of 1000 samples: found {found}, expected ValueError")
