"""Figures of the chapter "Accumulation meets DDP": a window on two lanes, and what it costs."""

from helpers.figures.no_sync.lanes import three_loops, window_on_link, window_spans
from helpers.figures.no_sync.measured import (
    errors_by_divisor,
    live_bytes,
    same_loss,
    samples_per_second,
)

__all__ = [
    "errors_by_divisor",
    "live_bytes",
    "same_loss",
    "samples_per_second",
    "three_loops",
    "window_on_link",
    "window_spans",
]
