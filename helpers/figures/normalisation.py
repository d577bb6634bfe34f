"""Figures of the chapter "Dividing by the right number": weights of tokens, logs and gradients."""

import statistics
from collections.abc import Mapping, Sequence

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

_LINES = ("-", "--", ":")


def relative_weights(lengths: Sequence[int], num_micro_batches: int) -> list[float]:
    """What a token of each sequence weighs in a mean of means, over what it should weigh. Local.

    lengths: tokens of each sequence of a window, cut in order into micro-batches of equal size.
    A token of a micro-batch with n of the window's N tokens weighs 1 / (K n) instead of 1 / N.
    ValueError: the sequences do not divide into num_micro_batches.
    """
    if num_micro_batches < 1 or len(lengths) % num_micro_batches:
        raise ValueError(
            f"{len(lengths)} sequences, expected a multiple of {num_micro_batches} micro-batches"
        )
    size = len(lengths) // num_micro_batches
    counts = [sum(lengths[start : start + size]) for start in range(0, len(lengths), size)]
    return [sum(lengths) / (num_micro_batches * n) for n in counts for _ in range(size)]


def _weights(axes, lengths: Sequence[int], num_micro_batches: int) -> None:
    """Bars of relative weight, on a logarithmic axis, with the right weight as a line at 1."""
    weights = relative_weights(lengths, num_micro_batches)
    size = len(lengths) // num_micro_batches
    colours = [series_colour(0 if index // size % 2 else 4) for index in range(len(lengths))]
    places = range(1, len(lengths) + 1)
    axes.bar(places, [weight - 1 for weight in weights], bottom=1, color=colours, width=0.8)
    axes.axhline(1, color=INK, linewidth=1)
    axes.set_yscale("log", base=2)
    axes.set_yticks([0.25, 0.5, 1, 2, 4, 8, 16, 32], ["1/4", "1/2", "1", "2", "4", "8", "16", "32"])
    axes.minorticks_off()
    axes.grid(visible=False, axis="x")
    axes.set_ylabel("weight of a token\n(right: 1)")


@styled()
def window(
    lengths: Sequence[int], num_micro_batches: int, logged_ratio: float, cosine: float
) -> Drawing:
    """One window: weights of its tokens, and how near the log and the gradient are. Local.

    logged_ratio: logged loss over the true one; cosine: of the two gradients. Drawn as labelled,
    with two decimals, so that the last bits of a sum change nothing.
    """
    logged_ratio, cosine = round(logged_ratio, 2), round(cosine, 2)
    shows = f"Token weights; logged loss x {logged_ratio:.2f}, cosine {cosine:.2f}"
    figure = drawing(6, 2.9, shows, columns=2, width_ratios=[2.3, 1])
    left, right = figure.axes
    _weights(left, lengths, num_micro_batches)
    left.set_ylim(0.4, 40)
    left.set_xticks([1, len(lengths) // 2, len(lengths)])
    left.set_xlabel("sequence of the window")
    right.bar([0, 1], [logged_ratio, cosine], color=["#8c8c8c", series_colour(1)], width=0.6)
    for place, value in enumerate((logged_ratio, cosine)):
        right.annotate(f"{value:.2f}", (place, value), (0, 3), textcoords="offset points",
                       ha="center")  # fmt: skip
    right.axhline(1, color=INK, linewidth=1)
    right.set(ylim=(0, 1.25), xlim=(-0.6, 1.6), yticks=[0, 0.5, 1], ylabel="over the right one")
    right.set_xticks([0, 1], ["loss,\nlogged", "gradient,\ncosine"])
    right.grid(visible=False, axis="x")
    return figure


def _spread(axes, groups: Sequence[Sequence[float]]) -> None:
    """Each group's values as points, its median as a bar across them."""
    for place, values in enumerate(groups):
        offsets = [0.3 * (index / max(len(values) - 1, 1) - 0.5) for index in range(len(values))]
        axes.plot([place + offset for offset in offsets], sorted(values), "o", markersize=3.5,
                  color=MEASUREMENT, alpha=0.55)  # fmt: skip
        axes.plot([place - 0.25, place + 0.25], [statistics.median(values)] * 2, color=INK)
    axes.grid(visible=False, axis="x")


@styled()
def log_and_gradient(windows: Mapping[int, Sequence[tuple[float, float, float]]]) -> Drawing:
    """Same weights, same windows: error of the logged loss, cosine of the gradients. Local.

    windows: number of micro-batches -> for each window (logged over true loss, relative error of
    the gradient, cosine). Dashed lines: what a right divisor has.
    """
    log_errors = {k: [ratio - 1 for ratio, _, _ in rows] for k, rows in windows.items()}
    cosines = {k: [cosine for _, _, cosine in rows] for k, rows in windows.items()}
    count = len(next(iter(cosines.values())))
    figure = drawing(6, 2.9, f"Logged loss and gradient cosine, {count} windows", columns=2)
    left, right = figure.axes
    _spread(left, [[100 * value for value in values] for values in log_errors.values()])
    _spread(right, list(cosines.values()))
    left.axhline(0, color=PREDICTION, linestyle="--", zorder=1)
    right.axhline(1, color=PREDICTION, linestyle="--", zorder=1)
    left.set(ylim=(-5, 5), ylabel="error of the logged loss (%)")
    right.set(ylim=(0, 1.1), ylabel="cosine with the true gradient")
    for axes, groups in ((left, log_errors), (right, cosines)):
        axes.set(xlabel="micro-batches", xlim=(-0.6, len(groups) - 0.4))
        axes.set_xticks(range(len(groups)), list(groups))
    return figure


@styled()
def training(
    logged: Mapping[str, Sequence[float]], excess: Mapping[str, Sequence[float]]
) -> Drawing:
    """Logged loss over steps, one line a variant; validation loss above the first's. Local.

    logged: nats per step, averaged over seeds; excess: one value a seed, for the other variants.
    """
    figure = drawing(6, 3.2, f"Training with {', '.join(logged)}", columns=2, width_ratios=[1.5, 1])
    left, right = figure.axes
    for index, (name, losses) in enumerate(logged.items()):
        losses = [float(loss) for loss in losses]
        smooth = [statistics.mean(losses[max(0, i - 9) : i + 1]) for i in range(len(losses))]
        left.plot(smooth, color=series_colour(index), linestyle=_LINES[index])
        y = max(smooth) - 0.1 * (index + 0.5) * (max(smooth) - min(smooth))  # where no curve is
        left.plot(
            [0.35 * len(smooth), 0.5 * len(smooth)], [y, y], linestyle=_LINES[index],
            color=series_colour(index),
        )  # fmt: skip
        label_line(left, 0.5 * len(smooth), y, name, series_colour(index))
    left.set(xlabel="optimizer steps", ylabel="logged loss (nats, mean of 10 steps)")
    for index, (name, values) in enumerate(excess.items(), start=1):
        right.plot([index] * len(values), values, series_marker(index), linestyle="",
                   color=series_colour(index), label=name)  # fmt: skip
    right.axhline(0, color=INK, linewidth=1)
    right.set(xlim=(0.4, len(excess) + 0.6), ylabel="validation loss,\nabove the true mean (nats)")
    right.set_xticks(
        range(1, len(excess) + 1), [name.replace(" each", "\neach") for name in excess]
    )
    right.grid(visible=False, axis="x")
    return figure
