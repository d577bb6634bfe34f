"""Seconds of each contender, in turns, so that a GPU that slows down slows all of them down."""

from collections.abc import Callable
from statistics import median

import torch

from helpers.kernels.bench.contests import Contest
from helpers.timing import measure

ROUNDS, CALLS = {"cuda": 5, "cpu": 1}, {"cuda": 10, "cpu": 1}  # on a CPU nothing is judged
CONTENDERS = ("ours", "torch", "bare")


def contest_row(contest: Contest, device: torch.device) -> dict:
    """Return medians and all samples, GB/s, and ours as a part of the bare movement's. Local."""
    samples: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for index in range(ROUNDS[device.type]):
        for name in CONTENDERS if index % 2 == 0 else reversed(CONTENDERS):
            samples[name].append(_seconds(getattr(contest, name), device))
    medians = {name: median(seconds) for name, seconds in samples.items()}
    return {
        "name": contest.name,
        "moved_bytes": contest.moved_bytes,
        "bare": contest.bare_name,
        "seconds": medians,
        "samples_s": samples,
        "gb_per_s": {name: contest.moved_bytes / s / 1e9 for name, s in medians.items()},
        "of_bare": medians["bare"] / medians["ours"],
        "of_torch": medians["torch"] / medians["ours"],
    }


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call, among several that are queued: a GPU must not wait for Python."""

    calls = CALLS[device.type]

    def several() -> None:
        for _ in range(calls):
            work()

    return measure(several, warmup=1, repeat=3, device=device).median_s / calls
