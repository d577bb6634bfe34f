"""The variance of a gradient against the batch, and the noise scale as it is estimated."""

import statistics
from collections.abc import Mapping, Sequence

from helpers.figures.style import (
    MEASUREMENT,
    PREDICTION,
    Drawing,
    drawing,
    label_line,
    series_colour,
    styled,
)

WIDTH = 4.6  # inches; a phone shrinks it by a quarter only


def powers_of_two(axis, values: Sequence[float], step: int = 1) -> None:
    """Ticks at every step-th value of a logarithmic axis, as plain numbers. Local."""
    chosen = list(values)[::step]
    axis.set_ticks(chosen, [f"{value:g}" for value in chosen])
    axis.set_ticks([], minor=True)


@styled()
def variance(
    trace: float, by_one: Mapping[int, float], no_twice: Mapping[int, float], num_samples: int
) -> Drawing:
    """Variance of a batch's gradient against its size, for two ways to draw; tr(S) / B. Local.

    by_one, no_twice: batch size -> variance, summed over all numbers of the gradient, where
    samples are drawn one by one, and where none of num_samples is drawn twice.
    """
    sizes = list(by_one)
    figure = drawing(WIDTH, 3.4, f"Variance of the gradient at {len(sizes)} batch sizes")
    (axes,) = figure.axes
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.plot(sizes, [trace / b for b in sizes], color=PREDICTION)
    fine = list(range(sizes[0], num_samples, 8))
    without = [trace / b * (1 - b / num_samples) for b in fine]
    axes.plot(fine, without, color=PREDICTION, linestyle=":")
    axes.plot(sizes, list(by_one.values()), "o", color=series_colour(0), label="drawn one by one")
    axes.plot(list(no_twice), list(no_twice.values()), "s", color=series_colour(1),
              fillstyle="none", markersize=9, label="no sample twice")  # fmt: skip
    axes.set_ylim(trace / num_samples / 6, 2 * trace / sizes[0])
    label_line(axes, sizes[1], trace / sizes[1], "tr(Σ) / B", PREDICTION, xytext=(10, 4))
    powers_of_two(axes.xaxis, sizes)
    axes.set(xlabel="batch size B (samples)", ylabel="variance of the gradient")
    axes.legend(loc="lower left")
    return figure


@styled()
def few_windows(
    found: Mapping[int, Sequence[float]], true: float, no_twice: float, capped: float
) -> Drawing:
    """Estimates of the noise scale from n windows, as ranges; the true one and wrong ones. Local.

    found: n -> estimates, infinite where there was none; these are drawn at the upper edge.
    no_twice: from windows in which no sample comes twice. capped: what the norm of the big batch
    in place of |G|^2 gives.
    """
    top = 20 * true
    figure = drawing(WIDTH, 3.6, f"Noise scale from {', '.join(map(str, found))} windows")
    (axes,) = figure.axes
    axes.set_yscale("log")
    for place, each in enumerate(found.values()):
        values = sorted(min(max(value, true / 10), top) for value in each)
        low, high = (values[round(q * (len(values) - 1))] for q in (0.1, 0.9))
        axes.plot([place, place], [low, high], color=MEASUREMENT, linewidth=1.5)
        axes.plot([place], [statistics.median(values)], "o", color=MEASUREMENT)
    right = len(found) + 0.6  # room for the names beside the last range
    lines = [("all data, by hand", true, PREDICTION, "-")]
    lines += [("no sample twice", no_twice, series_colour(1), "--")]
    lines += [("|g|² for |G|²", capped, series_colour(2), "--")]
    for name, y, colour, style in lines:
        axes.axhline(y, color=colour, linestyle=style)
        offset = 9 if y > true else -9
        label_line(axes, right, y, name, colour, xytext=(0, offset), ha="right")
    axes.set(xlim=(-0.5, right), ylim=(true / 12, 1.1 * top))
    axes.set_xticks(range(len(found)), [str(n) for n in found])
    tens = [10**k for k in range(8) if true / 12 < 10**k < top / 2]
    axes.set_yticks([*tens, top], [f"{ten:g}" for ten in tens] + ["none"])
    axes.set(xlabel="windows", ylabel="noise scale (samples)")
    return figure
