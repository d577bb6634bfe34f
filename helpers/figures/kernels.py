"""Figures of the chapter on kernels: bytes and launches, and all-reduces on NVLink."""

from helpers import cost_model
from helpers.figures.style import (
    INK,
    Drawing,
    drawing,
    label_line,
    series_colour,
    styled,
)
from helpers.link import Link

WIDTH = 5.4
LAUNCHES, BYTES = series_colour(1), series_colour(4)

#: One H100 (SXM): its data sheet's bandwidth; and what a launch is assumed to cost.
BYTES_PER_S, LAUNCH_S = 3.35e12, 5e-6

#: How n gradients get into a bucket with a factor: (launches of n tensors, bytes an element).
WAYS = {
    "concatenate, then multiply": (lambda n: 2, 16),
    "multiply, one by one": (lambda n: n, 8),
    "multi-tensor kernel": (lambda n: 1, 8),
}


def pack_s(way: str, num_tensors: int, elements_each: int) -> tuple[float, float]:
    """Return the predicted seconds of launches and of bytes, of float32, on one H100. Local."""
    launches, bytes_each = WAYS[way]
    moved_bytes = num_tensors * elements_each * bytes_each
    return launches(num_tensors) * LAUNCH_S, moved_bytes / BYTES_PER_S


@styled()
def packing(num_tensors: int, elements_each: int) -> Drawing:
    """Return a bar for each way to pack: microseconds of launches, and of bytes. Local."""
    shows = f"Packing {num_tensors} tensors of {elements_each} elements, predicted"
    figure = drawing(WIDTH, 2.0, shows)
    (axes,) = figure.axes
    for row, way in enumerate(WAYS):
        launches_us, bytes_us = (1e6 * s for s in pack_s(way, num_tensors, elements_each))
        axes.barh(row, launches_us, 0.5, color=LAUNCHES)
        axes.barh(row, bytes_us, 0.5, left=launches_us, color=BYTES)
        text = f" {launches_us + bytes_us:,.0f} µs: {launches_us:,.0f} + {bytes_us:,.0f}"
        axes.annotate(text, (launches_us + bytes_us, row), va="center", color=INK)
    slowest_s = max(sum(pack_s(way, num_tensors, elements_each)) for way in WAYS)
    axes.set_yticks(range(len(WAYS)), list(WAYS))
    axes.set(xlim=(0, 2.2e6 * slowest_s), ylim=(len(WAYS) - 0.5, -0.6))
    axes.set_xlabel("µs: launches (red) and bytes (green)")
    axes.grid(visible=False, axis="y")
    return figure


def one_shot_s(size_bytes: float, world_size: int, link: Link) -> float:
    """Return predicted seconds: two signals, and all other ranks' data through one port. Local."""
    bytes_per_s = link.bandwidth_gb_per_s * 1e9
    return 2 * link.latency_s + (world_size - 1) * size_bytes / bytes_per_s


@styled()
def one_shot_and_others(link: Link, world_size: int, crossing_bytes: float) -> Drawing:
    """Return seconds against size of the one-shot and of three ways by messages. Local.

    crossing_bytes: where the one-shot's line and the ring's meet, by the chapter's formula.
    """
    figure = drawing(WIDTH, 3.4, f"All-reduces on {world_size} ranks of NVLink, predicted")
    (axes,) = figure.axes
    sizes = [2.0**power for power in range(10, 28)]
    lines = {"one-shot": [one_shot_s(size, world_size, link) for size in sizes]}
    for way in ("ring", "halving_doubling", "doubling"):
        lines[way.replace("_", "-")] = [
            cost_model.all_reduce_s(way, int(size), world_size, link) for size in sizes
        ]
    for index, (name, seconds) in enumerate(lines.items()):
        colour = series_colour(index)
        axes.plot(sizes, [1e6 * s for s in seconds], color=colour)
        below = name == "one-shot"
        label_line(axes, sizes[0], 1e6 * seconds[0], name, colour, xytext=(2, -8 if below else 7))
    axes.axvline(crossing_bytes, color=INK, linestyle=":", linewidth=1.2)
    axes.set(xscale="log", yscale="log", xlabel="size (bytes)", ylabel="one all-reduce (µs)")
    axes.set_xticks(
        [1e3, 1e4, 1e5, 1e6, 1e7, 1e8], ["1 K", "10 K", "100 K", "1 M", "10 M", "100 M"]
    )
    axes.set_yticks([10, 100, 1000], ["10", "100", "1000"])
    axes.set_ylim(3.5, None)
    axes.minorticks_off()
    return figure
