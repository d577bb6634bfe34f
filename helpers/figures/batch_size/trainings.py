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
from helpers.sweep import fraction

CHANCE = math.log(10)  # nats, of ten classes
Losses = Sequence[Sequence[float]]  # learning rates, then seeds


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
        axes.set_xticks(values, [fraction(value) for value in values])
        axes.set_xticks([], minor=True)
    above.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
    return figure


def _span(lrs: Sequence[float], ratio: float, power: float) -> list[float]:
    """The learning rates, continued downwards as far as the largest batch is scaled."""
    more = round(math.log2(ratio) * power)
    return [lrs[0] * 2.0 ** -(more - i) for i in range(more)] + list(lrs)


Curve = Sequence[tuple[int, Sequence[float]]]  # update, losses of the seeds


@styled()
def curves(found: Mapping[int, Curve], rates: Mapping[int, float], num_samples: int) -> Drawing:
    """Validation loss of several batch sizes against epochs, and against updates. Local.

    found: batch size -> [(update, losses of the seeds)]; the median is a line, the range shaded,
    nothing above chance. rates: batch size -> learning rate. An epoch is num_samples.
    """
    figure = drawing(WIDTH, 5.8, f"Loss of {len(found)} batch sizes, two ways to count", rows=2)
    epochs = f"epochs (of {num_samples} samples)"
    for axes, counted in zip(figure.axes, (epochs, "updates"), strict=True):
        for index, (size, curve) in enumerate(found.items()):
            unit = size / num_samples if counted != "updates" else 1
            xs = [unit * update for update, _ in curve]
            colour = series_colour(index)
            low, medians, high = ([of(each) for _, each in curve] for of in
                                  (min, statistics.median, max))  # fmt: skip
            axes.fill_between(xs, low, high, color=colour, alpha=0.2, linewidth=0)
            axes.plot(xs, medians, color=colour, marker=series_marker(index), markevery=3,
                      markersize=4, label=f"B = {size}, rate {fraction(rates[size])}")  # fmt: skip
        axes.set(xlabel=counted, ylabel="validation loss (nats)", ylim=(0, CHANCE + 0.1))
    figure.axes[0].set_xticks(range(0, 11, 2))
    figure.axes[1].set_xscale("log", base=2)
    powers_of_two(figure.axes[1].xaxis, [4**i for i in range(6)])
    for axes in figure.axes:
        axes.set_yticks([0, 1, 2])
    figure.axes[0].legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
    return figure


@styled()
def warm_up(found: Mapping[str, Mapping[str, Sequence[float]]]) -> Drawing:
    """Share of wrong answers of each seed, without and with warm-up, network by network. Local.

    found: what was trained, "network, rate" -> the length of the warm-up -> shares, seed by seed;
    seeds are drawn side by side.
    """
    figure = drawing(WIDTH, 3.7, f"Wrong answers with and without warm-up: {', '.join(found)}")
    (axes,) = figure.axes
    place, places, names = 0.0, [], []
    for index, (name, ways) in enumerate(found.items()):
        start = place
        for way, shares in ways.items():
            beside = [place + 0.09 * (seed - (len(shares) - 1) / 2) for seed in range(len(shares))]
            axes.plot(beside, [100 * share for share in shares], series_marker(index),
                      color=series_colour(index), linestyle="", markersize=4.5)  # fmt: skip
            middle = 100 * statistics.median(shares)
            axes.plot([place - 0.38, place + 0.38], [middle] * 2, color=INK, linewidth=1.2)
            places.append(place)
            names.append(way)
            place += 1
        axes.annotate(name.replace(", ", "\n"), ((start + place - 1) / 2, 1.02),
                      xycoords=("data", "axes fraction"), ha="center",
                      color=series_colour(index))  # fmt: skip
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
    found: Mapping[int, Sequence[float]],
    least: float,
    bend: float,
    bends: Sequence[float],
    noise: Sequence[float],
) -> Drawing:
    """Updates to a target against the batch, S = least (1 + bend / B), and the noise scale. Local.

    found: batch size -> updates of each seed. bends: the bend of each seed alone. noise: noise
    scales that were measured. Both are drawn as the range that they span.
    """
    figure = drawing(WIDTH, 3.7, f"Updates to a target at {len(found)} batch sizes")
    (axes,) = figure.axes
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    sizes = list(found)
    axes.axvspan(min(noise), max(noise), color="#e8e2d0", linewidth=0, zorder=0)
    axes.axvspan(min(bends), max(bends), color=series_colour(1), alpha=0.25, linewidth=0, zorder=0)
    axes.plot(sizes, [least * (1 + bend / b) for b in sizes], color=PREDICTION)
    half = [b for b in sizes if b <= 2 * bend]
    first = statistics.median(found[sizes[0]])
    axes.plot(half, [first * sizes[0] / b for b in half], color=PREDICTION, linestyle=":")
    for size, steps in found.items():
        axes.plot([size, size], [min(steps), max(steps)], color=MEASUREMENT, linewidth=1.5)
        axes.plot([size], [statistics.median(steps)], "o", color=MEASUREMENT)
    high = axes.get_ylim()[1]
    for what, span, colour in (("bend", bends, series_colour(1)), ("noise scale", noise, INK)):
        label_line(axes, math.sqrt(min(span) * max(span)), high, what, colour, xytext=(0, 8),
                   ha="center", annotation_clip=False)  # fmt: skip
    low = axes.get_ylim()[0]
    ticks = [2**i for i in range(3, 11) if low < 2**i < high]
    axes.set_yticks(ticks, [str(tick) for tick in ticks])
    powers_of_two(axes.xaxis, sizes)
    axes.set(xlabel="batch size B (samples)", ylabel="updates to the target")
    return figure
