"""Gradient accumulation: windows of micro-batches, normalised once. Chapter 03 builds it."""

from .buffers import GradientAccumulator
from .gradients import accumulate_gradients
from .windows import split_batch, windows

__all__ = ["GradientAccumulator", "accumulate_gradients", "split_batch", "windows"]
