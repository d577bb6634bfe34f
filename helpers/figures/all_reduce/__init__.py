"""Figures of the chapter "All-reduce by hand": who holds which sum when, and what it costs."""

from helpers.figures.all_reduce.chunks import chunks_by_step, ring_step
from helpers.figures.all_reduce.curves import crossing, seconds_against_size
from helpers.figures.all_reduce.schedule import Transfer, holdings, schedule
from helpers.figures.all_reduce.tensors import tensor_step
from helpers.figures.all_reduce.terms import ring_terms

__all__ = [
    "Transfer",
    "chunks_by_step",
    "crossing",
    "holdings",
    "ring_step",
    "ring_terms",
    "schedule",
    "seconds_against_size",
    "tensor_step",
]
