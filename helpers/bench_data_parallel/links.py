"""Steps of emulated compute on emulated links."""

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from helpers.buckets import plan_buckets
from helpers.cost_model import overlap_lower_bound_s
from helpers.data_parallel import DistributedDataParallel
from helpers.link import LINKS as BY_NAME
from helpers.link import Link, late
from helpers.problems.sleeping import make_sleeping
from helpers.process_group import process_group

from .rows import Bound, Row
from .training import Wrap
from .turns import of_all_ranks, take_turns

#: 29 MB of gradients and 0.72 s of compute: a real transfer takes a few per cent of that.
NUM_LAYERS, LAYER_BYTES, FORWARD_S, BACKWARD_S = 24, 1_200_000, 10e-3, 20e-3
COMPUTE = {"forward_s": NUM_LAYERS * FORWARD_S, "backward_s": NUM_LAYERS * BACKWARD_S}
READY_S = [(index + 1) * BACKWARD_S for index in range(NUM_LAYERS)]
SIZES_BYTES = [LAYER_BYTES] * NUM_LAYERS

#: What rules on each: bytes and compute, about alike; the compute; the messages.
LINKS = {
    "500 Mbit/s": Link(100e-6, 0.0625),
    "1 Gbit/s Ethernet": BY_NAME["ethernet_1g"],
    "1 Gbit/s, 10 ms away": Link(10e-3, 0.125),
}
#: The buckets are planned anew in the second step.
WARMUP = 2
PLANNED = "ours, planned for the link"
LATE = "operations over 5 % late"
Wraps = Mapping[str, Wrap]


def planned(link: Link) -> Wrap:
    """Return what wraps a model in ours, its buckets planned for this link. Local."""
    plan = partial(plan_buckets, link=link, ready_s=READY_S)
    return lambda module: DistributedDataParallel(module, gradient_as_bucket_view=True, plan=plan)


def lower_bound_row(words: str, link: Link) -> Row:
    """Return the milliseconds that no step beats, as a row. Local; inside the process group."""
    world_size = dist.get_world_size()
    seconds = overlap_lower_bound_s(SIZES_BYTES, READY_S, world_size, link, **COMPUTE)
    return Row(words, LOWER_BOUND, (1e3 * seconds,), "ms")


LOWER_BOUND = "lower bound"


def measure_link(
    words: str,
    link: Link,
    wraps: Wraps,
    bounds: Mapping[str, tuple[Bound, ...]],
    rounds: int,
    tick: Callable[[], None],
) -> list[Row]:
    """Return the milliseconds of a step of each contender, of the slowest rank.

    Every rank must call this. First comes the lower bound; last, how many operations the
    machine could not complete as the link would have.
    """
    with process_group(backend=link):
        turns = {name: _turn(wrap) for name, wrap in wraps.items()}
        samples = of_all_ranks(take_turns(turns, rounds, tick, warmup=WARMUP), max)
        num_late = of_all_ranks({LATE: [late()]}, sum)[LATE]
        rows = [Row(words, name, ms, "ms", bounds.get(name, ())) for name, ms in samples.items()]
        return [lower_bound_row(words, link), *rows, Row(words, LATE, num_late, "")]


def _turn(wrap: Wrap) -> Callable[[], float]:
    model = wrap(_make_model())
    inputs = torch.ones(1)

    def turn() -> float:
        model.zero_grad(set_to_none=True)
        start_s = time.perf_counter()
        model(inputs).sum().backward()
        return 1e3 * (time.perf_counter() - start_s)

    return turn


def _make_model() -> nn.Module:
    return make_sleeping(NUM_LAYERS, LAYER_BYTES, forward_s=FORWARD_S, backward_s=BACKWARD_S)


def best(rows: list[Row]) -> Row:
    """Return the row with the least median. Local."""
    return min(rows, key=lambda row: statistics.median(row.samples))
