"""Trainings over batch sizes and learning rates: sweeps, curves, steps to a target."""

import math
import statistics
from collections.abc import Mapping, Sequence

from helpers.figures.batch_size.noise import WIDTH, powers_of_two
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

CHANCE = math.log(10)  # nats, of ten classes
Losses = Sequence[Sequence[float]]  # learning rates, then seeds


def _power(value: float) -> str:
    exponent = round(math.log2(value))
    return f"1/{2**-exponent}" if exponent < 0 else str(2**exponent)


@styled()
def sweep(found: Mapping[int, Losses], lrs: Sequence[float], power: float, what: str) -> Drawing:
    """Final loss against the learning rate, and against it over B to a power. Local.

    found: batch size -> for each of lrs the losses of the seeds; drawn as median and range,
    nothing above chance. power: 1 for the linear rule, 0.5 for the square root.
    """
    figure = drawing(WIDTH, 5.8, f"Loss of {what} at {len(lrs)} learning rates", rows=2)
    over = "B" if power == 1 else "√B"
    first = min(found)
    for axes, by_batch in zip(figure.axes, (False, True), strict=True):
        for index, (size, losses) in enumerate(found.items()):
            scale = (size / first) ** power if by_batch else 1
            shift = 2 ** (0.06 * (index - 1.5))
            xs = [shift * lr / scale for lr in lrs]
            medians = [min(statistics.median(each), CHANCE) for each in losses]
            how = {"color": series_colour(index)}
            axes.plot(xs, medians, marker=series_marker(index), label=f"B = {size}", **how)
            for x, each in zip(xs, losses, strict=True):
                axes.plot([x, x], [min(v, CHANCE) for v in (min(each), max(each))], linewidth=1,
                          **how)  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_yticks([0.1, 0.2, 0.5, 1, 2], ["0.1", "0.2", "0.5", "1", "2"])
        axes.set_yticks([], minor=True)
        axes.set(ylabel="validation loss (nats)", ylim=(0.09, 2.7))
    above, below = figure.axes
    above.set_xlabel("learning rate")
    below.set_xlabel(f"learning rate / ({over} / {over.replace('B', str(first))})")
    span = _span(lrs, max(found) / first, power)
    for axes, values in ((above, lrs[::2]), (below, span[::3])):
        axes.set_xticks(values, [_power(value) for value in values])
        axes.set_xticks([], minor=True)
    above.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, fontsize="small")
    return figure


def _span(lrs: Sequence[float], ratio: float, power: float) -> list[float]:
    """The learning rates, continued downwards as far as the largest batch is scaled."""
    more = round(math.log2(ratio) * power)
    return [lrs[0] * 2.0 ** -(more - i) for i in range(more)] + list(lrs)


Curve = Sequence[tuple[int, Sequence[float]]]  # update, losses of the seeds


@styled()
def curves(found: Mapping[int, Curve], num_samples: int) -> Drawing:
    """Validation loss of several batch sizes against epochs, and against updates. Local.

    found: batch size -> [(update, losses of the seeds)]; the median is a line, the range shaded.
    """
    figure = drawing(WIDTH, 5.4, f"Loss of {len(found)} batch sizes, two ways to count", rows=2)
    for axes, counted in zip(figure.axes, ("epochs (or samples)", "updates"), strict=True):
        for index, (size, curve) in enumerate(found.items()):
            unit = size / num_samples if counted != "updates" else 1
            xs = [unit * update for update, _ in curve]
            colour = series_colour(index)
            low, medians, high = ([of(each) for _, each in curve] for of in
                                  (min, statistics.median, max))  # fmt: skip
            axes.fill_between(xs, low, high, color=colour, alpha=0.2, linewidth=0)
            axes.plot(xs, medians, color=colour, marker=series_marker(index), markevery=3,
                      markersize=4, label=f"B = {size}")  # fmt: skip
        axes.set(xlabel=counted, ylabel="validation loss (nats)", ylim=(0, CHANCE + 0.1))
    figure.axes[0].set_xticks(range(0, 11, 2))
    figure.axes[1].set_xscale("log", base=2)
    powers_of_two(figure.axes[1].xaxis, [4**i for i in range(6)])
    for axes in figure.axes:
        axes.set_yticks([0, 1, 2])
    figure.axes[0].legend(loc="upper right", fontsize="small")
    return figure


@styled()
def warm_up(found: Mapping[str, Mapping[str, Sequence[float]]]) -> Drawing:
    """Share of wrong answers of each seed, without and with warm-up, network by network. Local.

    found: what was trained -> "none" or the length of the warm-up -> shares, seed by seed.
    """
    figure = drawing(WIDTH, 3.4, f"Wrong answers with and without warm-up: {', '.join(found)}")
    (axes,) = figure.axes
    place, places, names = 0.0, [], []
    for index, (name, ways) in enumerate(found.items()):
        start = place
        for way, shares in ways.items():
            axes.plot([place] * len(shares), [100 * share for share in shares],
                      series_marker(index), color=series_colour(index), linestyle="")  # fmt: skip
            middle = 100 * statistics.median(shares)
            axes.plot([place - 0.3, place + 0.3], [middle] * 2, color=INK)
            places.append(place)
            names.append(way)
            place += 1
        axes.annotate(name, ((start + place - 1) / 2, 1.02), xycoords=("data", "axes fraction"),
                      ha="center", color=series_colour(index), fontsize="small")  # fmt: skip
        place += 0.7
    axes.set_yscale("log")
    axes.set_yticks([2, 5, 10, 20, 50, 90], ["2", "5", "10", "20", "50", "90"])
    axes.set_yticks([], minor=True)
    axes.set_xticks(places, names)
    axes.set(ylabel="wrong answers (%)", xlabel="epochs of warm-up")
    axes.grid(visible=False, axis="x")
    return figure


@styled()
def steps_to_target(
    found: Mapping[int, Sequence[float]], least: float, bend: float, noise: Sequence[float]
) -> Drawing:
    """Updates to a target against the batch, S = least (1 + bend / B), and the noise scale. Local.

    found: batch size -> updates of each seed. noise: its smallest and largest measured value.
    """
    figure = drawing(WIDTH, 3.7, f"Updates to a target at {len(found)} batch sizes")
    (axes,) = figure.axes
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    sizes = list(found)
    axes.axvspan(*noise, color="#e8e2d0", linewidth=0, zorder=0)
    axes.plot(sizes, [least * (1 + bend / b) for b in sizes], color=PREDICTION)
    half = [b for b in sizes if b <= 4 * bend]
    first = statistics.median(found[sizes[0]])
    axes.plot(half, [first * sizes[0] / b for b in half], color=PREDICTION, linestyle=":")
    for size, steps in found.items():
        axes.plot([size, size], [min(steps), max(steps)], color=MEASUREMENT, linewidth=1.5)
        axes.plot([size], [statistics.median(steps)], "o", color=MEASUREMENT)
    axes.axvline(bend, color=series_colour(1), linestyle="--", linewidth=1.2)
    low, high = axes.get_ylim()
    label_line(axes, bend, high, "bend", series_colour(1), xytext=(4, -8))
    label_line(axes, math.sqrt(noise[0] * noise[1]), high, "noise scale", INK, xytext=(0, -8),
               ha="center")  # fmt: skip
    ticks = [2**i for i in range(3, 11) if low < 2**i < high]
    axes.set_yticks(ticks, [str(tick) for tick in ticks])
    powers_of_two(axes.xaxis, sizes)
    axes.set(xlabel="batch size B (samples)", ylabel="updates to the target")
    return figure


def fit_bend(updates: Mapping[int, float]) -> tuple[float, float]:
    """Return (least, bend) of S = least (1 + bend / B), batch size -> S, for the figure. Local.

    The least squares of log S over a grid of whole bends; least is then a mean of ratios.
    """
    fits = []
    for bend in range(1, 200):
        ratios = [math.log(s / (1 + bend / b)) for b, s in updates.items()]
        least = statistics.mean(ratios)
        fits.append((sum((ratio - least) ** 2 for ratio in ratios), math.exp(least), float(bend)))
    return min(fits)[1:]
