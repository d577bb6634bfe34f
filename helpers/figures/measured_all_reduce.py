"""Measured seconds of an all-reduce against its size, beside what a link's model predicts."""

import math
import textwrap
from collections.abc import Mapping

from helpers.cost_model import ALGORITHMS
from helpers.figures.style import (
    MEASUREMENT,
    PREDICTION,
    Drawing,
    drawing,
    label_line,
    series_colour,
    series_marker,
    styled,
)

#: By size in bytes: seconds of the fastest tenth, the median, the slowest tenth; predicted or None.
Series = Mapping[int, tuple[float, float, float, float | None]]


_LABELS_PER_PANEL = 14


@styled()
def seconds_by_algorithm(worlds: Mapping[int, Mapping[str, Series]], link: str) -> Drawing:
    """Return median seconds against bytes, log-log, a panel a world size, stacked. Local.

    worlds: world size -> algorithm -> its `Series`. Points with the range from the tenth to the
    ninetieth percentile; a line is the prediction, dotted where there is none and the line only
    leads the eye. link: whether it is real or emulated, in words.
    """
    shows = f"Seconds of an all-reduce against its size on {', '.join(map(str, worlds))} ranks"
    figure = drawing(5, 0.6 + 2.9 * len(worlds), shows, rows=len(worlds), squeeze=False)
    for axes, (world_size, series) in zip(figure.axes, worlds.items(), strict=True):
        for name, points in series.items():
            _plot(axes, name, points)
        axes.set(xscale="log", yscale="log", ylabel="milliseconds")
        axes.set_title(f"{world_size} ranks", loc="left", fontsize=10)
        _label(axes, series)
        axes.minorticks_off()
    figure.axes[-1].set_xlabel("bytes of the tensor")
    figure.supxlabel("\n".join(textwrap.wrap(link, 60)), fontsize=8)
    return figure


def _look(name: str) -> tuple[str, str]:
    """The colour and marker of an algorithm: those of ours are the book's."""
    if name in ALGORITHMS:
        index = ALGORITHMS.index(name)
        return series_colour(index), series_marker(index)
    others = {"torch": (MEASUREMENT, "*"), "auto": (PREDICTION, "X")}
    return others.get(name, (series_colour(5), series_marker(5)))


def _plot(axes, name: str, points: Series) -> None:
    colour, marker = _look(name)
    lows, medians, highs, predicted = zip(*points.values(), strict=True)
    axes.errorbar(
        list(points),
        [1e3 * median for median in medians],
        yerr=[
            [1e3 * (median - low) for low, median in zip(lows, medians, strict=True)],
            [1e3 * (high - median) for high, median in zip(highs, medians, strict=True)],
        ],
        fmt=marker,
        color=colour,
        elinewidth=1,
        capsize=2,
    )
    is_predicted = None not in predicted
    line = predicted if is_predicted else medians
    style = {"linewidth": 1.3} if is_predicted else {"linewidth": 0.8, "linestyle": ":"}
    axes.plot(list(points), [1e3 * seconds for seconds in line], color=colour, **style)


def _label(axes, series: Mapping[str, Series]) -> None:
    """Name each series at its right end, names that would meet moved apart, about their middle."""
    ends = sorted((1e3 * list(points.values())[-1][1], name) for name, points in series.items())
    low, high = axes.get_ylim()
    apart = (high / low) ** (1 / _LABELS_PER_PANEL)  # of two labels, as a ratio
    heights: list[float] = []
    for end, _ in ends:
        heights.append(max(end, heights[-1] * apart) if heights else end)
    middle = math.exp(
        math.fsum(math.log(end / y) for (end, _), y in zip(ends, heights, strict=True)) / len(ends)
    )
    axes.set_ylim(min(low, heights[0] * middle / apart), max(high, heights[-1] * middle * apart))
    last = max(max(points) for points in series.values())
    first = min(min(points) for points in series.values())
    for (_, name), height in zip(ends, heights, strict=True):
        label_line(axes, last, height * middle, name.replace("_", "-"), _look(name)[0], size=9)
    axes.set_xlim(first / 1.4, last * max(4.0, (last / first) ** 0.6))
