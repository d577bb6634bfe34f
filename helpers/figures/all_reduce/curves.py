"""Seconds of an all-reduce: against its size by algorithm, and the ring's two terms against n."""

import itertools
from collections.abc import Mapping, Sequence

from helpers.cost_model import ALGORITHMS, all_reduce_s, critical_path
from helpers.figures.style import (
    INK,
    PREDICTION,
    Drawing,
    drawing,
    label_line,
    series_colour,
    series_marker,
    styled,
)
from helpers.link import Link

_WIDTH = 4.8  # inches; a phone shrinks it by a quarter
_DASHES = ("-", "--", "-.", ":", (0, (6, 2, 1, 2, 1, 2)))
#: (median, least, greatest, ...) seconds by size in bytes, of one algorithm.
Measured = Mapping[int, Sequence[float]]


@styled()
def seconds_against_size(
    links: Mapping[str, Link],
    world_size: int,
    measured: Mapping[str, Mapping[str, Measured]],
    count: int,
) -> Drawing:
    """Return seconds against bytes, log-log, a panel a link, stacked. Local.

    links: name -> Link, whose predictions are the lines. measured: link's name -> algorithm ->
    points with their range, of `count` runs each. A star is where the best two predictions
    cross; a filled one, where straight lines through these two ways' points do.
    """
    figure = drawing(
        _WIDTH,
        0.5 + 3.1 * len(links),
        f"Seconds of an all-reduce against its size on {world_size} ranks: {', '.join(links)}",
        rows=len(links),
        squeeze=False,
    )
    for axes, (name, link) in zip(figure.axes, links.items(), strict=True):
        points = measured.get(name, {})
        sizes = [size for each in points.values() for size in each] or [10**3, 10**7]
        for algorithm, each in points.items():
            _points(axes, algorithm, each)
        _lines(axes, link, world_size, list(points) or ALGORITHMS, min(sizes), max(sizes))
        names = list(points) or ALGORITHMS
        _crossings(axes, link, world_size, names, min(sizes), max(sizes), points)
        axes.set_title(f"{name} (emulated)", loc="left", fontsize=10)
        axes.set_ylabel("milliseconds")
    runs = f"; points: median and range of {count}" if count else ""
    figure.axes[-1].set_xlabel(f"size of the tensor{runs}")
    return figure


def _lines(axes, link, world_size, algorithms, least: int, greatest: int) -> None:
    """Predictions, labelled on the right, the labels moved apart where lines end together."""
    sizes = _between(least, greatest)
    ends = []
    for algorithm in algorithms:
        line = [1e3 * all_reduce_s(algorithm, size, world_size, link) for size in sizes]
        index = ALGORITHMS.index(algorithm)
        axes.plot(sizes, line, color=series_colour(index), linestyle=_DASHES[index], linewidth=1.5)
        ends.append((line[-1], algorithm))
    axes.set_xscale("log")
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    apart = (high / low) ** 0.075  # of two labels, as a ratio
    heights = []
    for end, _ in sorted(ends):
        heights.append(max(end, heights[-1] * apart) if heights else end)
    centre = sum(end / height for (end, _), height in zip(sorted(ends), heights, strict=True))
    for (_, algorithm), height in zip(sorted(ends), heights, strict=True):
        colour = series_colour(ALGORITHMS.index(algorithm))
        y, name = height * centre / len(ends), algorithm.replace("_", "-")
        label_line(axes, sizes[-1], y, name, colour, size=9)
    axes.set_xlim(least / 1.3, greatest * 1.3)
    _plain_ticks(axes.xaxis, {1: "B", 1e3: "KB", 1e6: "MB"}, apart=5)
    _plain_ticks(axes.yaxis, {1: ""}, apart=2)
    axes.set_xlim(least / 1.3, greatest * (greatest / least) ** 0.52)  # room for the names
    axes.minorticks_off()


def _between(least: int, greatest: int, count: int = 41) -> list[int]:
    ratio = (greatest / least) ** (1 / (count - 1))
    return [round(least * ratio**index) for index in range(count)]


def _plain_ticks(axis, units: Mapping[float, str], apart: float) -> None:
    """1, 2, 5, 10, ... as plain numbers with their units, some way apart from one another."""
    low, high = axis.get_view_interval()
    steps, shown = [f * 10.0**power for power in range(-6, 12) for f in (1, 2, 5)], []
    for step in steps:
        if low <= step <= high and step >= 0.99 * apart * max(shown, default=0):
            shown.append(step)
    axis.set_ticks(shown, [_named(step, units) for step in shown], fontsize=9)


def _named(number: float, units: Mapping[float, str]) -> str:
    scale = max((each for each in units if each <= number), default=min(units))
    return f"{number / scale:.6g} {units[scale]}".strip()


def _points(axes, algorithm: str, points: Measured) -> None:
    index = ALGORITHMS.index(algorithm)
    if not points:
        return
    medians, lows, highs = zip(*(point[:3] for point in points.values()), strict=True)
    below = [1e3 * (median - low) for median, low in zip(medians, lows, strict=True)]
    above = [1e3 * (high - median) for median, high in zip(medians, highs, strict=True)]
    axes.errorbar(
        list(points),
        [1e3 * median for median in medians],
        yerr=[below, above],
        fmt=series_marker(index),
        color=series_colour(index),
        markersize=6,
        elinewidth=1,
        capsize=3,
    )


def crossing(first: Measured, second: Measured) -> float:
    """Return the bytes at which two algorithms take equal time, by straight lines. Local.

    The lines go through the medians at each one's least and greatest size. ValueError: lines
    that do not cross at a size above 0.
    """
    (slope, start), (other_slope, other_start) = map(_line, (first, second))
    if (other_start - start) * (slope - other_slope) <= 0:
        raise ValueError("crossing: found lines that do not cross at a size above 0")
    return (other_start - start) / (slope - other_slope)


def _line(points: Measured) -> tuple[float, float]:
    """(seconds a byte, seconds at size 0) of the line through the first and the last point."""
    sizes = min(points), max(points)
    if sizes[0] == sizes[1]:
        raise ValueError(f"crossing: found one size, {sizes[0]} bytes, expected two")
    low_s, high_s = (points[size][0] for size in sizes)
    slope = (high_s - low_s) / (sizes[1] - sizes[0])
    return slope, low_s - slope * sizes[0]


def _crossings(axes, link, world_size, algorithms, least, greatest, points=None) -> None:
    """An open star where the predicted best changes, a filled one where the measured lines cross.

    The second is drawn where both algorithms were measured at two sizes or more.
    """
    sizes = _between(least, greatest, 401)

    def fastest(size: int) -> str:
        return min(algorithms, key=lambda name: all_reduce_s(name, size, world_size, link))

    for before, after in itertools.pairwise(sizes):
        pair = fastest(before), fastest(after)
        if pair[0] == pair[1]:
            continue
        milliseconds = 1e3 * all_reduce_s(pair[1], after, world_size, link)
        axes.plot([after], [milliseconds], "*", mfc="none", mec=INK, ms=17, mew=1.2)
        measured = [(points or {}).get(name, {}) for name in pair]
        if all(len(each) > 1 for each in measured):
            slope, start = _line(measured[0])
            found = crossing(*measured)
            axes.plot([found], [1e3 * (start + slope * found)], "*", color=INK, ms=9)


@styled()
def ring_terms(link: Link, size_bytes: int, world_sizes: Sequence[int]) -> Drawing:
    """Return the two terms of a ring's predicted time against the number of ranks. Local."""
    shows = f"The two terms of a ring's time, {size_bytes} bytes, {list(world_sizes)} ranks"
    figure = drawing(_WIDTH, 3, shows)
    axes = figure.axes[0]
    paths = [critical_path("ring", size_bytes, world_size) for world_size in world_sizes]
    latency = [1e3 * path.messages * link.latency_s for path in paths]
    bandwidth = [1e-6 * path.sent_bytes / link.bandwidth_gb_per_s for path in paths]
    whole = [sum(terms) for terms in zip(latency, bandwidth, strict=True)]
    for index, (line, name) in enumerate(
        ((bandwidth, "bytes / bandwidth"), (latency, "messages × latency"))
    ):
        axes.plot(
            world_sizes,
            line,
            color=series_colour(index),
            linestyle=_DASHES[index],
            marker=series_marker(index),
        )
        label_line(axes, world_sizes[-1], line[-1], name, series_colour(index), size=9)
    axes.plot(world_sizes, whole, color=PREDICTION, linestyle=":")
    label_line(axes, world_sizes[-1], whole[-1], "both", PREDICTION, size=9)
    axes.set_xscale("log", base=2)
    axes.set_xticks(world_sizes, [str(world_size) for world_size in world_sizes])
    axes.set(xlabel="ranks n", ylabel="milliseconds")
    axes.set_xlim(None, world_sizes[-1] * (world_sizes[-1] / world_sizes[0]) ** 0.55)
    axes.minorticks_off()
    return figure
