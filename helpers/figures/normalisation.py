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
WIDTH = 4.6  # inches; a phone shrinks it by a quarter only


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
    axes.set_ylabel("weight of a token\n(1 is right)")


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
    figure = drawing(WIDTH, 3.7, shows, rows=2, height_ratios=[2.2, 1])
    above, below = figure.axes
    _weights(above, lengths, num_micro_batches)
    above.set_ylim(0.4, 40)
    above.set_xticks([1, len(lengths) // 2, len(lengths)])
    above.set_xlabel("sequence of the window")
    below.barh([1, 0], [logged_ratio, cosine], color=["#8c8c8c", series_colour(1)], height=0.6)
    for place, value in ((1, logged_ratio), (0, cosine)):
        below.annotate(f"{value:.2f}", (value, place), (4, 0), textcoords="offset points",
                       va="center")  # fmt: skip
    below.axvline(1, color=INK, linewidth=1)
    below.set(xlim=(0, 1.25), ylim=(-0.6, 1.6), xticks=[0, 0.5, 1], xlabel="1 is right")
    below.set_yticks([1, 0], ["logged loss /\ntrue loss", "gradient,\ncosine"])
    below.grid(visible=False, axis="y")
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
    figure = drawing(WIDTH, 4.6, f"Logged loss and gradient cosine, {count} windows", rows=2)
    above, below = figure.axes
    _spread(above, [[100 * value for value in values] for values in log_errors.values()])
    _spread(below, list(cosines.values()))
    above.axhline(0, color=PREDICTION, linestyle="--", zorder=1)
    below.axhline(1, color=PREDICTION, linestyle="--", zorder=1)
    above.set(ylim=(-1, 1), ylabel="error of the\nlogged loss (%)")
    below.set(ylim=(0, 1.1), ylabel="cosine with the\ntrue gradient", xlabel="micro-batches")
    for axes in (above, below):
        axes.set(xlim=(-0.6, len(windows) - 0.4))
        axes.set_xticks(range(len(windows)), list(windows))
    return figure


Run = tuple[Sequence[float], float, float]


@styled()
def training(runs: Mapping[str, Sequence[Run]]) -> Drawing:
    """Logged loss over steps, one line a variant; validation loss above the first's. Local.

    runs: variant -> for each seed (logged nats of each step, validation loss by tokens, by
    lines); the first variant is the reference, seed by seed.
    """
    figure = drawing(WIDTH, 5.6, f"Training with {', '.join(runs)}", rows=2)
    above, below = figure.axes
    for index, (name, each) in enumerate(runs.items()):
        logged = [statistics.mean(step) for step in zip(*(run[0] for run in each), strict=True)]
        _curve(above, index, name, logged)
    above.set(xlabel="optimizer steps", ylabel="logged loss\n(nats, mean of 10 steps)")
    _excess(below, runs)
    return figure


def _curve(axes, index: int, name: str, losses: Sequence[float]) -> None:
    """A smoothed curve, and its name beside a piece of its line where no curve is."""
    how = {"color": series_colour(index), "linestyle": _LINES[index]}
    smooth = [statistics.mean(losses[max(0, i - 9) : i + 1]) for i in range(len(losses))]
    axes.plot(smooth, **how)
    y = max(smooth) - 0.11 * (index + 0.5) * (max(smooth) - min(smooth))
    axes.plot([0.35 * len(smooth), 0.5 * len(smooth)], [y, y], **how)
    label_line(axes, 0.5 * len(smooth), y, name, series_colour(index))


def _excess(axes, runs: Mapping[str, Sequence[Run]]) -> None:
    """Validation loss over that of the first variant's run with the same seed, two judgements."""
    (_, reference), *others = runs.items()
    places = []
    for at, judged in ((1, "by tokens"), (2, "by lines")):
        for index, (name, each) in enumerate(others, start=1):
            values = [run[at] - ref[at] for run, ref in zip(each, reference, strict=True)]
            axes.plot([len(places)] * len(values), values, series_marker(index), linestyle="",
                      color=series_colour(index))  # fmt: skip
            places.append(f"{name.replace(' each', '')}\n{judged}")
    axes.axhline(0, color=INK, linewidth=1)
    axes.set(xlim=(-0.6, len(places) - 0.4), ylabel="validation loss, above\nthe true mean (nats)")
    axes.set_xticks(range(len(places)), places)
    axes.grid(visible=False, axis="x")
