"""Seconds that a call takes: warmed up, synchronised, repeated, with its spread."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Timing:
    """Median, tenth and ninetieth percentile of ``count`` timed calls, in seconds."""

    median_s: float
    p10_s: float
    p90_s: float
    count: int

    def __str__(self) -> str:
        """Return one line in milliseconds, with the spread and the count."""
        low, middle, high = (1e3 * s for s in (self.p10_s, self.median_s, self.p90_s))
        return f"{middle:.3g} ms (p10 {low:.3g}, p90 {high:.3g}, n = {self.count})"


def measure(
    function: Callable[[], object],
    *,
    warmup: int = 3,
    repeat: int = 20,
    device: torch.device | str | None = None,
    before: Callable[[], object] | None = None,
) -> Timing:
    """Return how long ``function()`` takes until its results are there. Local.

    The first ``warmup`` calls are thrown away: they pay for communicators, caches, compilation.
    What the function returns is waited for if it has a ``wait`` method (the Work of an async
    collective, or a list of them). A CUDA device is synchronised before each start and stop:
    ``device``, or where it is None the current one if this process uses CUDA. ``before()`` runs
    untimed ahead of each call; a barrier there lets all ranks start together (then every rank
    must call this with the same counts).

    Raises ValueError for a negative warmup or a repeat below 1. Chapter 03 uses it first.
    """
    if warmup < 0 or repeat < 1:
        raise ValueError(f"found warmup={warmup}, repeat={repeat}; expected at least 0 and 1")
    samples_s = []
    for _ in range(warmup + repeat):
        if before is not None:
            _wait_for(before())
        _synchronize(device)
        start_s = time.perf_counter()
        _wait_for(function())
        _synchronize(device)
        samples_s.append(time.perf_counter() - start_s)
    samples_s = samples_s[warmup:]
    return Timing(*(_quantile(samples_s, q) for q in (0.5, 0.1, 0.9)), count=repeat)


def _wait_for(result: object) -> None:
    if hasattr(result, "wait"):
        result.wait()
    elif isinstance(result, list | tuple):
        for part in result:
            _wait_for(part)


def _synchronize(device: torch.device | str | None) -> None:
    # Asking for a device would start CUDA in a process that does not use it.
    is_cuda = torch.cuda.is_initialized() if device is None else torch.device(device).type == "cuda"
    if is_cuda:
        torch.cuda.synchronize(device)


def _quantile(samples_s: list[float], q: float) -> float:
    """Interpolate between the two nearest samples, as numpy.quantile does by default."""
    ordered = sorted(samples_s)
    position = q * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])
