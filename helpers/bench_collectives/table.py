"""The table, and what its columns mean."""

import math
from collections.abc import Sequence

from helpers.cost_model import algorithm_bandwidth_gb_per_s, bus_bandwidth_gb_per_s

from .arguments import Settings
from .measure import Row, World

LEGEND = """\
size       of the tensor on each rank
time       of one call, of the slowest rank: median of {repeat} rounds (10th - 90th percentile)
algbw      size / time: what a training step feels
busbw      algbw x 2 (n - 1) / n: what each rank would send per second, were it a ring; to be held
           against the link's speed in one direction. It is computed, not measured on a wire: where
           a switch or shared memory does the sum, less is sent, and it can exceed the link
CPU        of one call, all threads of all ranks together{predicted}
GB = 1e9 bytes, KiB = 1024, MiB = 1024 KiB"""

PREDICTED = """
predicted  by the link's model: messages x latency + bytes / bandwidth, one port each way
ratio      time / predicted"""


def table(world: World, settings: Settings) -> str:
    """Return the rows of one world as text, with a line above that says what they ran on. Local."""
    head = (
        f"all-reduce of {settings.dtype}, {ranks_words(world.world_size)}, {world.backend} on "
        f"{'the CPU' if world.device == 'cpu' else world.device}, {link_words(settings)}"
    )
    columns = ["size", "algorithm", "time ms", "(p10 - p90)", "algbw GB/s", "busbw GB/s", "CPU ms"]
    columns += ["predicted ms", "ratio"] if settings.link else []
    lines = [columns, *(_cells(row) for row in world.rows)]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    text = ["  ".join(_aligned(cells, widths)).rstrip() for cells in lines]
    blocks = [head, *text]
    if world.left_out:
        blocks.append(f"{world.left_out} needs all ranks on the CPUs of one host: left out")
    if world.num_late:
        blocks.append(
            f"{world.num_late} operations ended over 5 % after the emulated link would have: "
            "this machine is too slow for it, take a larger --slowed"
        )
    return "\n".join(blocks)


def legend(settings: Settings) -> str:
    """Return what the columns mean. Local."""
    predicted = PREDICTED if settings.link else ""
    return LEGEND.format(repeat=settings.repeat, predicted=predicted)


def link_words(settings: Settings) -> str:
    """Whether the link is real or emulated, in words. Local."""
    return f"{settings.link_name}, {settings.link}" if settings.link else "real links"


def ranks_words(world_size: int) -> str:
    """As "1 rank" or "4 ranks". Local."""
    return f"{world_size} rank{'s' if world_size > 1 else ''}"


def size_words(size_bytes: int) -> str:
    """Bytes in the largest unit of which they are a whole number. Local."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes % scale == 0:
            return f"{size_bytes // scale} {unit}"
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if size_bytes % scale == 0:
            return f"{size_bytes // scale} {unit}"
    return f"{size_bytes} B"


def _cells(row: Row) -> list[str]:
    low_s, high_s = (row.quantile_s(q) for q in (0.1, 0.9))
    cells = [
        size_words(row.size_bytes),
        row.algorithm,
        _number(1e3 * row.median_s),
        f"({_number(1e3 * low_s)} - {_number(1e3 * high_s)})",
        _number(algorithm_bandwidth_gb_per_s(row.size_bytes, row.median_s)),
        _number(bus_bandwidth_gb_per_s(row.size_bytes, row.median_s, row.world_size)),
        _number(1e3 * row.median_cpu_s),
    ]
    if row.predicted_s is not None:
        ratio = f"{row.median_s / row.predicted_s:.2f}" if row.predicted_s else "-"
        cells += [_number(1e3 * row.predicted_s), ratio]
    return cells


def _number(value: float) -> str:
    """Three digits that count, without an exponent."""
    if value == 0 or value >= 100:
        return f"{value:.0f}"
    return f"{value:.{2 - math.floor(math.log10(value))}f}"


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    is_name = [index == 1 for index in range(len(cells))]
    return [
        cell.ljust(width) if left else cell.rjust(width)
        for cell, width, left in zip(cells, widths, is_name, strict=True)
    ]
