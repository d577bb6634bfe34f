"""Figures of the chapter "Data parallel by hand": a step, errors of faults, speed-up."""

from collections.abc import Mapping, Sequence

from matplotlib.patches import FancyBboxPatch

from helpers.figures.style import (
    INK,
    MEASUREMENT,
    PAPER,
    PREDICTION,
    Drawing,
    drawing,
    label_line,
    rank_colour,
    series_colour,
    series_marker,
    styled,
)

WIDTH = 5.0
EQUAL = "#e3e3e3"  # the fill of what all ranks have alike
FLOOR = 1e-5  # errors below it are drawn on the left edge; those of a fault are far above
METERS = ("logged loss", "gradient", "replicas")


@styled()
def step_of_replicas(world_size: int) -> Drawing:
    """One step, from top to bottom: what differs between ranks in their colour, else grey. Local.

    Raises ValueError for another world size than 1 to 6, which is what fits.
    """
    if not 1 <= world_size <= 6:
        raise ValueError(f"step_of_replicas: found {world_size} ranks, expected 1 to 6")
    figure = drawing(WIDTH, 3.7, f"One step of {world_size} replicas, from shards to equal steps")
    (axes,) = figure.axes
    axes.set(xlim=(0, 10), ylim=(0, 7.4))
    axes.set_axis_off()
    rows = (
        (6.2, "parameters", True),
        (5.0, "shard", False),
        (3.8, "gradient", False),
        (1.4, "mean gradient", True),
        (0.2, "step", True),
    )
    width = 10 / world_size
    for rank in range(world_size):
        middle = (rank + 0.5) * width
        axes.text(middle, 7.15, f"rank {rank}", ha="center", va="center", size=9)
        for y, text, is_equal in rows:
            _box(axes, middle, y, 0.86 * width, text, None if is_equal else rank)
        for top, bottom in ((6.2, 5.7), (5.0, 4.5), (3.8, 3.45), (2.5, 2.1), (1.4, 0.9)):
            _arrow(axes, middle, top, bottom)
    _box(axes, 5, 2.55, 10 - 0.14 * width, "all-reduce, ÷ world size", None)
    return figure


def _box(axes, middle: float, y: float, width: float, text: str, rank: int | None) -> None:
    fill, ink = (EQUAL, INK) if rank is None else (rank_colour(rank), PAPER)
    shape = FancyBboxPatch(
        (middle - width / 2, y), width, 0.7, boxstyle="round,pad=0,rounding_size=0.15",
        facecolor=fill, edgecolor=INK, linewidth=0.8,
    )  # fmt: skip
    axes.add_patch(shape)
    axes.text(middle, y + 0.33, text, ha="center", va="center", size=9, color=ink)


def _arrow(axes, x: float, top: float, bottom: float) -> None:
    how = {"arrowstyle": "-|>", "color": INK, "linewidth": 0.9, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", (x, bottom), (x, top), arrowprops=how)


@styled()
def errors_by_fault(
    errors: Mapping[str, Sequence[float]], predicted: Mapping[str, float]
) -> Drawing:
    """A row a fault, three marks a row: errors of loss, gradient and replicas, log axis. Local.

    errors: fault -> (loss, gradient, replicas). Zeros and what is below 1e-5 stand on the left
    edge. predicted: fault -> error of the gradient, drawn as a tick. Values are drawn with two
    digits, so that the last bits of a sum change nothing.
    """
    figure = drawing(WIDTH, 1.2 + 0.42 * len(errors), f"Errors of {', '.join(errors)}")
    (axes,) = figure.axes
    for meter, name in enumerate(METERS):
        x = [max(float(f"{each[meter]:.1e}"), FLOOR) for each in errors.values()]
        y = [row + 0.22 * (meter - 1) for row in range(len(errors))]
        colour = series_colour(meter)
        axes.plot(x, y, series_marker(meter), color=colour, label=name, linestyle="", clip_on=False)
    for row, fault in enumerate(errors):
        if fault in predicted:
            axes.plot([predicted[fault]] * 2, [row - 0.32, row + 0.32], color=PREDICTION)
        axes.axhline(row + 0.5, color=INK, linewidth=0.3)
    axes.set_xscale("log")
    axes.set(xlim=(FLOOR, 10), ylim=(len(errors) - 0.5, -0.5), xlabel="relative error")
    axes.set_xticks([FLOOR, 1e-4, 1e-3, 1e-2, 0.1, 1], ["0", "1e-4", "0.001", "0.01", "0.1", "1"])
    axes.set_yticks(range(len(errors)), list(errors))
    axes.minorticks_off()
    axes.grid(visible=False, axis="y")
    figure.legend(loc="outside upper center", ncols=3, handletextpad=0.2, columnspacing=1.2)
    return figure


Spread = Mapping[str, float]  # median_s, p10_s, p90_s, as in timing.Timing


@styled()
def speed_up(speed: Mapping[int, Mapping[str, Spread]], compute_s: float) -> Drawing:
    """Two panels, strong and weak: speed-up in samples per second against ranks. Local.

    speed: world size -> {"emulated strong": the Timing of a step as a dict, ..., "emulated r": of
    averaging alone}; compute_s: what one rank computes for the batch. The line is predicted from
    compute_s and r, the points are measured.
    """
    figure = drawing(WIDTH, 5.2, "Speed-up against ranks, strong and weak scaling", rows=2)
    worlds = sorted(speed)
    r_s = {n: speed[n]["emulated r"]["median_s"] for n in worlds}
    one_s = compute_s + r_s[1]
    lines = {
        "strong": [one_s / (compute_s / n + r_s[n]) for n in worlds],
        "weak": [n * one_s / (compute_s + r_s[n]) for n in worlds],
    }
    for axes, (kind, line) in zip(figure.axes, lines.items(), strict=True):
        axes.plot(worlds, worlds, color=PREDICTION, linestyle="--", linewidth=1)
        axes.plot(worlds, line, color=PREDICTION)
        for index, how in enumerate(("emulated", "computed")):
            _points(axes, index, worlds, speed, f"{how} {kind}")
        axes.set(ylabel=f"{kind} scaling:\nspeed-up", ylim=(0, 1.12 * worlds[-1]))
        axes.set_xticks(worlds)
    figure.axes[1].set_xlabel("ranks")
    figure.axes[0].legend(loc="upper left")
    label_line(figure.axes[0], worlds[-1], worlds[-1], "one per rank", PREDICTION,
               xytext=(-8, 0), ha="right")  # fmt: skip
    return figure


def _points(
    axes, index: int, worlds: Sequence[int], speed: Mapping[int, Mapping[str, Spread]], name: str
) -> None:
    """Speed-up against the median of one rank, with bars for the spread, a little beside."""
    how, kind = name.split()
    one_s = speed[worlds[0]][name]["median_s"]
    factor = {n: n if kind == "weak" else 1 for n in worlds}
    seconds = [[speed[n][name][q] for q in ("p10_s", "median_s", "p90_s")] for n in worlds]
    gains = [[factor[n] * one_s / s for s in row] for n, row in zip(worlds, seconds, strict=True)]
    middle = [gain[1] for gain in gains]
    bars = [[gain[1] - gain[2] for gain in gains], [gain[0] - gain[1] for gain in gains]]
    colour = MEASUREMENT if index == 0 else series_colour(1)
    places = [n + 0.06 * (index - 0.5) for n in worlds]
    axes.errorbar(places, middle, bars, fmt=series_marker(index), color=colour, label=how,
                  linewidth=1.2)  # fmt: skip


@styled()
def scaling_model(compute_ms_per_sample: float, all_reduce_ms: float, batch: int) -> Drawing:
    """Speed-up of the two formulas, 1 to 64 ranks, on logarithmic axes. Local.

    batch: samples of one rank alone; strong scaling divides them, weak scaling gives each rank
    as many. One rank averages nothing.
    """
    compute_ms, worlds = batch * compute_ms_per_sample, (1, 2, 4, 8, 16, 32, 64)
    r_ms = {n: all_reduce_ms if n > 1 else 0 for n in worlds}
    strong = [compute_ms / (compute_ms / n + r_ms[n]) for n in worlds]
    weak = [n * compute_ms / (compute_ms + r_ms[n]) for n in worlds]
    shows = f"Speed-up of 64 ranks: strong {strong[-1]:.3g}, weak {weak[-1]:.3g}"
    figure = drawing(WIDTH, 3.3, shows)
    (axes,) = figure.axes
    axes.plot(worlds, worlds, color=PREDICTION, linestyle="--", linewidth=1)
    axes.axhline(1, color=INK, linewidth=0.8)
    for index, (name, line) in enumerate({"strong": strong, "weak": weak}.items()):
        colour, y = series_colour(index), min(max(line[-1], 0.1), 64)
        axes.plot(worlds, line, color=colour, linestyle=("-", ":")[index])
        shift = 7 * (1 - 2 * (index == 0)) if weak[-1] < 1.6 * strong[-1] else 0
        label_line(axes, 64, y, f"{name} {line[-1]:.3g}", colour, xytext=(6, shift))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(worlds, [str(n) for n in worlds])
    ticks = (0.125, 0.5, 1, 2, 8, 32)
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set(xlim=(1, 200), ylim=(0.08, 80), xlabel="ranks", ylabel="speed-up (samples/s)")
    axes.minorticks_off()
    return figure
