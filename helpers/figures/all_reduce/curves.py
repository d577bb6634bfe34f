"""Seconds of an all-reduce against its size, by algorithm, predicted and measured."""

import itertools
from collections.abc import Mapping

from helpers.cost_model import ALGORITHMS, all_reduce_s
from helpers.figures.all_reduce.names import names_at_ends
from helpers.figures.style import (
    INK,
    Drawing,
    drawing,
    series_colour,
    series_marker,
    styled,
)
from helpers.link import Link

_WIDTH = 4.8  # inches; a phone shrinks it by a quarter
_DASHES = ("-", "--", "-.", ":", (0, (6, 2, 1, 2, 1, 2)))
#: (fastest, slowest, the processes' own) seconds by size in bytes, of one algorithm.
Measured = Mapping[int, tuple[float, float, float]]


@styled()
def seconds_against_size(
    links: Mapping[str, Link],
    world_size: int,
    measured: Mapping[str, Mapping[str, Measured]],
    count: int,
) -> Drawing:
    """Return seconds against bytes, log-log, a panel a link, stacked. Local.

    links: name -> Link, whose predictions are the lines; where any was measured, those that were,
    in their order. measured: link's name -> algorithm -> points with their range, of `count` runs
    each, and as a pale bar from the line upwards what the processes cost by themselves. A star
    is where the best two predictions cross; a filled one, where straight lines through these two
    ways' points do.
    """
    links = {name: links[name] for name in measured or links}
    figure = drawing(
        _WIDTH,
        0.7 + 3.4 * len(links),
        f"Seconds of an all-reduce against its size on {world_size} ranks: {', '.join(links)}",
        rows=len(links),
        squeeze=False,
    )
    for axes, (name, link) in zip(figure.axes, links.items(), strict=True):
        points = measured.get(name, {})
        sizes = [size for each in points.values() for size in each] or [10**3, 10**7]
        for algorithm, each in points.items():
            _points(axes, algorithm, each)
            _own_costs(axes, algorithm, each, link, world_size)
        _lines(axes, link, world_size, list(points) or ALGORITHMS, min(sizes), max(sizes))
        names = list(points) or ALGORITHMS
        _crossings(axes, link, world_size, names, min(sizes), max(sizes), points)
        axes.set_title(f"{name} (emulated)", loc="left", fontsize=10)
        axes.set_ylabel("milliseconds")
    runs = (
        f"\npoints: fastest and range of {count};\npale: the processes' own cost" if count else ""
    )
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
        ends.append((float(f"{line[-1]:.6g}"), algorithm))  # ties by name, on every machine
    axes.set_xscale("log")
    axes.set_yscale("log")
    names_at_ends(axes, sizes[-1], sorted(ends), (greatest / least) ** 0.05)
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


def _own_costs(axes, algorithm: str, points: Measured, link: Link, world_size: int) -> None:
    """A pale bar at each point, from the prediction up to prediction plus own cost."""
    colour = series_colour(ALGORITHMS.index(algorithm))
    for size, (_, _, own_s) in points.items():
        line_s = all_reduce_s(algorithm, size, world_size, link)
        ends = [1e3 * line_s, 1e3 * (line_s + own_s)]
        axes.plot([size] * 2, ends, color=colour, alpha=0.3, linewidth=7, solid_capstyle="butt")


def _points(axes, algorithm: str, points: Measured) -> None:
    index = ALGORITHMS.index(algorithm)
    if not points:
        return
    milliseconds = [1e3 * fastest for fastest, _, _ in points.values()]
    above = [1e3 * (slowest - fastest) for fastest, slowest, _ in points.values()]
    axes.errorbar(
        list(points),
        milliseconds,
        yerr=[[0.0] * len(above), above],
        fmt=series_marker(index),
        color=series_colour(index),
        markersize=6,
        markerfacecolor="none",  # points at nearly the same place stay visible
        elinewidth=1.4,
        capsize=3,
    )


def crossing(first: Measured, second: Measured) -> float:
    """Return the bytes at which two algorithms take equal time, by straight lines. Local.

    The lines go through the points at each one's least and greatest size. ValueError: lines
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
