"""`plan_buckets(link=...)` against a sweep of caps."""

from collections.abc import Callable
from functools import partial

from helpers.buckets import plan_buckets
from helpers.data_parallel import DistributedDataParallel

from .links import LAYER_BYTES, LINKS, LOWER_BOUND, PLANNED, WARMUP, best, measure_link, planned
from .rows import Bound, Row
from .training import Wrap

DEFAULT_ROUNDS = 3
WHAT = "wall time of a step of emulated compute on emulated links, by plan, of the slowest rank"
LAYERS_A_BUCKET = 1, 2, 3, 4, 6, 8, 12, 24
BEST = "best of the sweep"
BOUNDS = {PLANNED: (Bound(BEST, 1.05), Bound(LOWER_BOUND, None))}


def num_ticks(rounds: int) -> int:
    """How often `measure` ticks. Local."""
    return len(LINKS) * (WARMUP + rounds)


def measure(rounds: int, tick: Callable[[], None]) -> list[Row]:
    """Return the rows of all links. Every rank must call this."""
    sweep = {f"cap {num * LAYER_BYTES / 1e6:.1f} MB": _capped(num) for num in LAYERS_A_BUCKET}
    rows = []
    for words, link in LINKS.items():
        found = measure_link(words, link, sweep | {PLANNED: planned(link)}, BOUNDS, rounds, tick)
        winner = best([row for row in found if row.name in sweep])
        rows += [*found, Row(words, BEST, winner.samples, "ms")]
    return rows


def _capped(num_layers: int) -> Wrap:
    plan = partial(plan_buckets, cap_bytes=num_layers * LAYER_BYTES)
    return partial(DistributedDataParallel, gradient_as_bucket_view=True, plan=plan)
