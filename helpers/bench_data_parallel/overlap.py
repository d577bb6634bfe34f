"""A step whose messages travel during backward: against the lower bound, and against torch's."""

from collections.abc import Callable, Sequence
from functools import partial

from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel

from helpers.data_parallel import DistributedDataParallel

from .links import LINKS, LOWER_BOUND, PLANNED, WARMUP, measure_link, planned
from .rows import Bound, Row, ratio

DEFAULT_ROUNDS = 3
WHAT = "wall time of a step of emulated compute on emulated links, of the slowest rank"
TORCH_DEFAULT = "torch, default caps"
CAPS_MIB = 1, 4, 25
_TORCH = partial(TorchDistributedDataParallel, gradient_as_bucket_view=True)

WRAPS = {
    TORCH_DEFAULT: _TORCH,
    **{f"torch, {cap} MiB": partial(_TORCH, bucket_cap_mb=cap) for cap in CAPS_MIB},
    "ours, default caps": partial(DistributedDataParallel, gradient_as_bucket_view=True),
}
#: To what ours, planned, is held; to torch's with a cap chosen by hand it is only compared.
BOUNDS = {
    PLANNED: (
        Bound(LOWER_BOUND, 1.05),
        Bound(TORCH_DEFAULT, 1.0),
        *(Bound(name, None) for name in WRAPS if name.startswith("torch") and "MiB" in name),
    ),
    "ours, default caps": (Bound(TORCH_DEFAULT, None),),
}
NUM_BETTER = 2


def num_ticks(rounds: int) -> int:
    """How often `measure` ticks. Local."""
    return len(LINKS) * (WARMUP + rounds)


def measure(rounds: int, tick: Callable[[], None]) -> list[Row]:
    """Return the rows of all links. Every rank must call this."""
    rows = []
    for words, link in LINKS.items():
        wraps = WRAPS | {PLANNED: planned(link)}
        rows += measure_link(words, link, wraps, BOUNDS, rounds, tick)
    return rows


def remark(rows: Sequence[Row]) -> str:
    """Return in words on how many links ours is better than torch's default. Local."""
    ratios = [ratio(rows, row, TORCH_DEFAULT) for row in rows if row.name == PLANNED]
    num_better = sum(found < 1 for found in ratios)
    words = "met" if num_better >= NUM_BETTER else "MISSED"
    return (
        f"better than torch's default on {num_better} of {len(ratios)} links, "
        f"expected {NUM_BETTER} at the least: {words}"
    )
