"""Figures of the chapter "Send and receive": seconds against size, and cases against prediction."""

from collections.abc import Mapping, Sequence

from matplotlib.ticker import NullLocator

from helpers.figures.style import (
    INK,
    MEASUREMENT,
    PREDICTION,
    Drawing,
    drawing,
    label_line,
    series_colour,
    styled,
)
from helpers.link import Link

#: Colours of the two terms of a message's time, here and in the exploration.
LATENCY, BANDWIDTH = series_colour(1), series_colour(4)


def half_performance_bytes(link: Link) -> float:
    """Return the size at which latency and size / bandwidth are equal. Local."""
    return link.latency_s * link.bandwidth_gb_per_s * 1e9


@styled()
def message_time(
    link: Link, runs: Mapping[float, Sequence[float]], held_out: Mapping[float, Sequence[float]]
) -> Drawing:
    """Return the time of a message against its size: the link's line, measured points. Local.

    `runs`, `held_out`: bytes -> measured seconds, the latter in sizes that no fit has seen. A
    point is the median of a size, its bar goes from the fastest to the slowest run. Both axes
    are logarithmic, times are turned back from the link's slow motion into the real link's.
    """
    every = {**runs, **held_out}
    figure = drawing(5, 3.4, "Time of one message against its size, predicted and measured")
    axes = figure.axes[0]
    sizes = [min(every) * (max(every) / min(every)) ** (i / 60) for i in range(61)]
    line_us = [1e6 * link.real_s(link.message_s(size)) for size in sizes]
    axes.plot(sizes, line_us, color=PREDICTION)
    count = _points(axes, link, runs, "o", MEASUREMENT)
    _points(axes, link, held_out, "s", series_colour(3))
    half = half_performance_bytes(link)
    axes.axvline(half, color=BANDWIDTH, linestyle=":", linewidth=1.2)
    where = {"xytext": (-5, 0), "ha": "right", "va": "top"}
    label_line(axes, half, max(line_us), "latency × bandwidth", BANDWIDTH, **where)
    name = "latency + size / bandwidth"
    label_line(axes, sizes[0], line_us[0], name, PREDICTION, xytext=(0, -8), va="top")
    axes.set(xscale="log", yscale="log", ylim=(0.7 * line_us[0], None))
    latency_us = 1e6 * link.real_s(link.latency_s)
    ticks = (latency_us, 2 * latency_us, line_us[-1])  # an empty message, twice that, the largest
    axes.set_yticks(ticks, [f"{tick:.3g}" for tick in ticks])
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set(xlabel="size (bytes)", ylabel="one message (µs of the real link)")
    figure.shows += f": {len(every)} sizes, {count} runs of each fitted size"
    return figure


def _points(
    axes, link: Link, runs: Mapping[float, Sequence[float]], marker: str, colour: str
) -> int:
    """Draw medians with their range; return how many runs the first size has."""
    for size, seconds in runs.items():
        ordered = sorted(1e6 * link.real_s(s) for s in seconds)
        axes.plot([size] * 2, [ordered[0], ordered[-1]], color=colour, linewidth=1.2)
        axes.plot(size, ordered[len(ordered) // 2], marker, color=colour)
    return len(next(iter(runs.values()), ()))


@styled()
def cases(
    predicted: Mapping[str, float],
    measured_s: Mapping[str, Sequence[float]],
    unit_s: float,
    unit: str,
) -> Drawing:
    """Return a row a case: a predicted bar's end as a line, measured runs as points. Local.

    `predicted`: case -> its time, in `unit`, which is `unit_s` seconds. `measured_s`: case -> the
    seconds of its runs.
    """
    figure = drawing(5, 0.7 + 0.36 * len(predicted), f"Predicted and measured: {unit}")
    axes = figure.axes[0]
    for row, (name, expected) in enumerate(predicted.items()):
        axes.plot([0, expected], [row, row], color=PREDICTION, linewidth=1)
        axes.plot([expected] * 2, [row - 0.32, row + 0.32], color=PREDICTION, linewidth=2.4)
        found = [seconds / unit_s for seconds in measured_s[name]]
        axes.plot(found, [row] * len(found), "o", color=MEASUREMENT, markersize=4)
    axes.set_yticks(range(len(predicted)), list(predicted))
    axes.set(xlabel=unit, ylim=(len(predicted) - 0.4, -0.6))
    axes.set_xlim(0, None)
    axes.grid(visible=False, axis="y")
    return figure


@styled()
def two_terms(latency_us: float, bandwidth_gb_per_s: float) -> Drawing:
    """Return what a message costs on a link, and which share of the bandwidth it gets. Local.

    Above: latency, size / bandwidth and their sum against the size; below: the share. Drawn from
    the model, for 100 bytes to 1 GB. The dotted line is the half-performance size.
    """
    link = Link(latency_us * 1e-6, bandwidth_gb_per_s)
    half = half_performance_bytes(link)
    figure = drawing(
        5, 4.4, f"Latency and bandwidth are equal at {_bytes(half)}", rows=2, sharex=True
    )
    above, below = figure.axes
    sizes = [10 ** (2 + i / 4) for i in range(29)]
    ends = [sizes[0], sizes[-1]]
    above.plot(ends, [latency_us] * 2, color=LATENCY, linewidth=1.2, linestyle="--")
    above.plot(ends, [s / bandwidth_gb_per_s / 1e3 for s in ends], color=BANDWIDTH, linewidth=1.2)
    above.plot(sizes, [1e6 * link.message_s(s) for s in sizes], color=INK, linewidth=2.2)
    below.plot(sizes, [100 * s / (s + half) for s in sizes], color=INK, linewidth=2.2)
    for axes in (above, below):
        axes.axvline(half, color=PREDICTION, linestyle=":", linewidth=1.4)
        axes.set_xscale("log")
    above.set(yscale="log", ylim=(0.01, 1e9), ylabel="one message (µs)")
    above.set_yticks([1, 1e3, 1e6, 1e9], ["1", "1000", "10⁶", "10⁹"])
    above.set_xticks([1e2, 1e4, 1e6, 1e8], ["100", "10 K", "1 M", "100 M"])
    below.set(ylim=(0, 104), ylabel="share of\nthe bandwidth (%)", xlim=(100, 1e9))
    below.set(yticks=[0, 50, 100], xlabel="size (bytes)")
    for axes in (above, below):
        axes.minorticks_off()  # a frame of the exploration stays light
    label_line(above, 100, latency_us, "latency", LATENCY, xytext=(4, 7))
    label_line(above, 1e9, 1e6 / bandwidth_gb_per_s, "size / bandwidth", BANDWIDTH,
               xytext=(-4, -30), ha="right")  # fmt: skip
    label_line(below, half, 50, f"half at {_bytes(half)}", INK, **_beside(half))
    return figure


def _beside(size: float) -> dict:
    """Where a label of the dotted line has room: to its right, or to its left near the end."""
    is_near_the_end = size > 1e7
    return {"xytext": (-8, 8), "ha": "right"} if is_near_the_end else {"xytext": (8, -8)}


def _bytes(size: float) -> str:
    for unit, scale in (("MB", 1e6), ("KB", 1e3)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size:.3g} bytes"
