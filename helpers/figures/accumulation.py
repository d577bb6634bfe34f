"""Figures of the chapter "Gradient accumulation": errors, memory, windows, training curves."""

import itertools
from collections.abc import Mapping, Sequence

import torch

from helpers.figures.style import (
    INK,
    MEASUREMENT,
    PREDICTION,
    Drawing,
    drawing,
    label_line,
    series_colour,
    series_marker,
    styled,
)

DASHES = ("-", ":", "--", "-.", (0, (6, 2)))  # told apart without colour


@styled()
def error_against_micro_batches(
    num_micro_batches: Sequence[int],
    errors: Mapping[tuple[torch.dtype, torch.dtype], Sequence[float]],
) -> Drawing:
    """Return a gradient's relative error against the window's length, a line a kind. Local.

    A kind is (dtype of the gradients, dtype of their sum).
    """
    figure = drawing(6, 3, "Relative error of a gradient against the window's length")
    axes = figure.axes[0]
    for index, (kind, line) in enumerate(errors.items()):
        colour, name = series_colour(index), " in ".join(str(x).split(".")[-1] for x in kind)
        axes.plot(num_micro_batches, line, marker=series_marker(index), color=colour)
        label_line(axes, num_micro_batches[-1], line[-1], name, colour, xytext=(8, 0))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(num_micro_batches, [str(number) for number in num_micro_batches])
    axes.set(xlabel="micro-batches in a window", ylabel="relative error of the gradient")
    axes.set_xlim(None, num_micro_batches[-1] * 7)
    axes.minorticks_off()
    return figure


@styled()
def peak_memory(
    num_micro_batches: Sequence[int],
    predicted: Sequence[float],
    measured: Sequence[int],
    together: Sequence[int],
    floor_bytes: int,
) -> Drawing:
    """Return peak bytes against K for one batch: predicted line, measured points. Local.

    `together` is the peak where losses are summed before one backward; `floor_bytes` is what no
    K can go below.
    """
    figure = drawing(6, 3.2, "Peak memory against the number of micro-batches of one batch")
    axes = figure.axes[0]
    megabytes = [[y / 1e6 for y in line] for line in (predicted, measured, together)]
    axes.plot(num_micro_batches, megabytes[0], color=PREDICTION)
    axes.plot(num_micro_batches, megabytes[1], "o", color=MEASUREMENT)
    axes.plot(num_micro_batches, megabytes[2], "s", color=series_colour(1))
    axes.axhline(floor_bytes / 1e6, color=series_colour(2), linestyle="--", linewidth=1.2)
    away, above = {"xytext": (10, 6)}, {"xytext": (8, 8)}
    ours, theirs = "backward at each: predicted, measured", "one backward at the end"
    label_line(axes, num_micro_batches[1], megabytes[1][1], ours, INK, **away)
    label_line(axes, num_micro_batches[1], max(megabytes[2][1:]), theirs, series_colour(1), **above)
    last = num_micro_batches[-1]
    where = {"xytext": (0, -4), "ha": "right", "va": "top"}
    label_line(axes, last, floor_bytes / 1e6, "what no K removes", series_colour(2), **where)
    axes.set_xscale("log", base=2)
    axes.set_xticks(num_micro_batches, [str(number) for number in num_micro_batches])
    axes.set(xlabel="micro-batches K of the same batch", ylabel="peak memory (MB)")
    axes.set_ylim(0, 1.2 * max(megabytes[2]))
    axes.minorticks_off()
    return figure


@styled()
def windows_of_rules(
    num_micro_batches: int, rules: Mapping[str, Sequence[Sequence[int]]]
) -> Drawing:
    """Return a row of micro-batches for each rule, grouped into the windows it updates on. Local.

    rules: name -> windows, each the numbers of its micro-batches. One that is in no window stays
    white: it never reaches the optimizer.
    """
    figure = drawing(6, 0.55 + 0.62 * len(rules), f"Windows by rule: {', '.join(rules)}")
    axes = figure.axes[0]
    for row, windows in enumerate(rules.values()):
        _draw_boxes(axes, row, range(num_micro_batches), "white")
        for index, window in enumerate(windows):
            _draw_boxes(axes, row, window, series_colour(index))
            axes.plot([window[-1] + 1] * 2, [row - 0.42, row + 0.42], color=INK, linewidth=3)
    axes.set_yticks(range(len(rules)), list(rules))
    axes.set_xticks([i + 0.5 for i in range(num_micro_batches)], range(num_micro_batches))
    axes.set(xlim=(-0.1, num_micro_batches + 0.1), ylim=(len(rules) - 0.5, -0.5))
    axes.set_xlabel("micro-batch; a thick bar is an update")
    _without_frame(axes)
    return figure


def _draw_boxes(axes, row: int, columns: Sequence[int], colour: str) -> None:
    axes.barh(
        [row] * len(columns),
        [0.9] * len(columns),
        left=[column + 0.05 for column in columns],
        height=0.6,
        color=colour,
        edgecolor=INK,
        linewidth=0.8,
    )


def _without_frame(axes) -> None:
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


@styled()
def samples_in_windows(num_samples: int, micro_batch_size: int, num_micro_batches: int) -> Drawing:
    """Return which samples each window holds and by what its sum is divided. Local.

    A row is a window, a box a micro-batch as wide as its samples; the label counts the window.
    """
    shows = (
        f"{num_samples} samples in micro-batches of {micro_batch_size}, {num_micro_batches} each"
    )
    figure = drawing(5.6, 3, shows)
    axes = figure.axes[0]
    full = micro_batch_size * num_micro_batches
    starts = range(0, num_samples, full)
    for row, start in enumerate(starts):
        end = min(start + full, num_samples)
        edges = [*range(start, end, micro_batch_size), end]
        widths = [right - left for left, right in itertools.pairwise(edges)]
        lefts, colour = [left - start for left in edges[:-1]], series_colour(row)
        axes.barh(
            [row] * len(widths), widths, left=lefts, color=colour, edgecolor="white", height=0.8
        )
        short = ", the short one" if end - start < full else ""
        which = f"samples {start}–{end - 1}" if end - start > 1 else f"sample {start}"
        text = f"{which}: sum ÷ {end - start}{short}"
        label_line(axes, end - start, row, text, INK)
    axes.set(xlim=(0, 2.2 * min(full, num_samples)), ylim=(max(len(starts), 3) - 0.5, -0.5))
    axes.set_yticks(range(len(starts)), [f"update {row + 1}" for row in range(len(starts))])
    axes.set_xticks([])
    axes.set_xlabel(f"{len(starts)} updates; a box is a micro-batch")
    _without_frame(axes)
    return figure


@styled()
def training_curves(curves: Mapping[str, Sequence[float]], points: str) -> Drawing:
    """Return loss against updates, a line a name; the one named `points` as points. Local.

    The first line is solid, the others are broken, each in its own way.
    """
    figure = drawing(6, 3.4, f"Validation loss against updates: {', '.join(curves)}")
    axes = figure.axes[0]
    labels = []
    for index, (name, curve) in enumerate(curves.items()):
        updates, colour = range(1, len(curve) + 1), series_colour(index)
        if name == points:
            colour = MEASUREMENT
            axes.plot(updates[::3], curve[::3], "o", color=colour, markersize=4)
        else:
            axes.plot(updates, curve, color=colour, linestyle=DASHES[index % len(DASHES)])
        labels.append((curve[-1], name + (" (points)" if name == points else ""), colour))
    top = 1.05 * max(max(curve) for curve in curves.values())
    last = max(len(curve) for curve in curves.values())
    height = 0.0
    # Ends that differ by rounding alone are ties, which the order of the names decides.
    for end, name, colour in sorted(labels, key=lambda label: (round(label[0], 6), label[1])):
        height = max(end, height)  # labels of curves that end together are stacked
        label_line(axes, last, height, name, colour)
        height += 0.08 * top
    axes.set(xlabel="updates", ylabel="validation loss", ylim=(0, top), xlim=(0, 1.4 * last))
    axes.set_xticks(range(0, last + 1, 16))
    return figure
