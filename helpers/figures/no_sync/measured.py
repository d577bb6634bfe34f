"""What was measured of accumulation under DDP: errors, bytes, samples per second, curves."""

from collections.abc import Mapping, Sequence

from helpers.figures.style import (
    INK,
    MEASUREMENT,
    PREDICTION,
    Drawing,
    drawing,
    label_line,
    rank_colour,
    rank_marker,
    series_colour,
    series_marker,
    styled,
)

WIDTH = 5.0
FLOOR = 1e-5  # errors below it are drawn on the left edge
DASHES = ("-", "--", ":")


@styled()
def errors_by_divisor(errors: Mapping[str, Mapping[int, Sequence[float]]]) -> Drawing:
    """A row a divisor: errors of the gradient, a point a batch and world size, log axis. Local.

    errors: divisor -> world size -> errors. What is below 1e-5 stands on the left edge. Values
    are drawn with two digits, so that the last bits of a sum change nothing.
    """
    figure = drawing(WIDTH, 1.3 + 0.5 * len(errors), f"Errors of {', '.join(errors)}")
    (axes,) = figure.axes
    for row, each in enumerate(errors.values()):
        for index, (world_size, values) in enumerate(each.items()):
            x = [max(float(f"{value:.1e}"), FLOOR) for value in values]
            y = [row + 0.26 * (index - (len(each) - 1) / 2)] * len(x)
            axes.plot(x, y, series_marker(index), color=series_colour(index), linestyle="",
                      label=f"{world_size} ranks" if row == 0 else None, clip_on=False)  # fmt: skip
        axes.axhline(row + 0.5, color=INK, linewidth=0.3)
    axes.set_xscale("log")
    axes.set(xlim=(FLOOR, 10), ylim=(len(errors) - 0.5, -0.5))
    axes.set_xlabel("relative error of the gradient")
    axes.set_xticks([FLOOR, 1e-4, 1e-3, 1e-2, 0.1, 1], ["0", "1e-4", "0.001", "0.01", "0.1", "1"])
    axes.set_yticks(range(len(errors)), list(errors))
    axes.minorticks_off()
    axes.grid(visible=False, axis="y")
    figure.legend(loc="outside upper center", ncols=2, handletextpad=0.2)
    return figure


@styled()
def live_bytes(sizes: Mapping[str, Sequence[float]]) -> Drawing:
    """A row a kind: bytes beyond the parameters at a window's start, its peak and its end. Local.

    sizes: kind -> (start, peak, end), in sizes of the gradients; drawn with two digits.
    """
    figure = drawing(WIDTH, 1.2 + 0.34 * len(sizes), f"Live bytes of a window: {'; '.join(sizes)}")
    (axes,) = figure.axes
    for row, each in enumerate(sizes.values()):
        start, peak, end = (round(size, 2) for size in each)
        axes.plot([start, peak], [row, row], color=series_colour(0), linewidth=4, alpha=0.35)
        for index, (name, x) in enumerate({"start": start, "peak": peak, "end": end}.items()):
            label, y = name if row == 0 else None, row + 0.2 * (index - 1)
            axes.plot(x, y, series_marker(index), color=series_colour(index), label=label,
                      linestyle="")  # fmt: skip
    axes.set(xlim=(0, None), ylim=(len(sizes) - 0.5, -0.5))
    axes.set_xlabel("bytes, in sizes of the gradients")
    axes.set_yticks(range(len(sizes)), list(sizes))
    axes.grid(visible=False, axis="y")
    figure.legend(loc="outside upper center", ncols=3, handletextpad=0.2)
    return figure


Spread = Mapping[str, float]  # median_s, p10_s, p90_s, as in timing.Timing


@styled()
def samples_per_second(
    windows: Mapping[str, Mapping[int, Spread]],
    predicted_s: Mapping[str, Mapping[int, float]],
    most: Mapping[str, float],
) -> Drawing:
    """Share of the compute's own samples per second, against K; a line and points a link. Local.

    windows: link -> K -> the Timing of a window as a dict; predicted_s: link -> K -> its seconds;
    most: link -> seconds of a micro-batch's compute. 1 means that communication costs nothing.
    """
    figure = drawing(WIDTH, 3.6, f"Share of compute against K: {', '.join(windows)}")
    (axes,) = figure.axes
    for index, (link, by_k) in enumerate(windows.items()):
        colour, counts = series_colour(index), list(by_k)
        line = [k * most[link] / predicted_s[link][k] for k in counts]
        rows = [[k * most[link] / by_k[k][q] for q in _QUANTILES] for k in counts]
        middle = [row[1] for row in rows]
        bars = [[row[1] - row[2] for row in rows], [row[0] - row[1] for row in rows]]
        axes.plot(counts, line, color=colour, linestyle=DASHES[index % 3])
        axes.errorbar(counts, middle, bars, fmt=series_marker(index), color=MEASUREMENT,
                      markerfacecolor=colour, linewidth=1.2, markersize=6)  # fmt: skip
        label_line(axes, counts[-1], min(line[-1], 0.95), link, colour)
    axes.axhline(1, color=PREDICTION, linewidth=1, linestyle="--")
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(k) for k in counts])
    axes.minorticks_off()
    axes.set(xlim=(0.9 * counts[0], 2.6 * counts[-1]), ylim=(0, 1.08))
    axes.set(xlabel="K, micro-batches in a window", ylabel="samples/s, share of\ncompute alone")
    return figure


_QUANTILES = ("p10_s", "median_s", "p90_s")


@styled()
def same_loss(curves: Mapping[str, Mapping[int, Sequence[float]]]) -> Drawing:
    """A column a problem: loss by step for each world size; below, what lies between them. Local.

    curves: problem -> world size -> losses. Below, the largest difference to the smallest world,
    relative, so far in the training, on a log axis; an exact 0 is drawn at 1e-17. Dashed: the
    bound of 1e-12.
    """
    shows = f"Loss curves of {', '.join(curves)} on several ranks, and their differences"
    figure = drawing(6, 4.4, shows, rows=2, columns=len(curves), sharex="col", squeeze=False)
    above, below = figure.axes[: len(curves)], figure.axes[len(curves) :]
    for top, bottom, (problem, by_world) in zip(above, below, curves.items(), strict=True):
        worlds = sorted(by_world)
        first = by_world[worlds[0]]
        for index, world_size in enumerate(worlds):
            steps = range(1, len(first) + 1)
            how = {"color": rank_colour(index), "linestyle": DASHES[index % 3]}
            top.plot(steps, by_world[world_size], linewidth=(5, 3, 1.4)[index % 3],
                     label=f"{world_size} rank{'s' * (world_size > 1)}", **how)  # fmt: skip
            if index:
                off = _largest_so_far(by_world[world_size], first)
                bottom.plot(steps, off, marker=rank_marker(index), markevery=8, **how)
        bottom.axhline(1e-12, color=PREDICTION, linestyle="--", linewidth=1)
        bottom.set_yscale("log")
        bottom.set(ylim=(1e-17, 1e-11), xlabel="update")
        top.set_xlabel(problem)
        top.xaxis.set_label_position("top")
    above[0].set_ylabel("training loss")
    below[0].set_ylabel("difference\nto 1 rank, relative")
    figure.legend(*above[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


def _largest_so_far(found: Sequence[float], expected: Sequence[float]) -> list[float]:
    largest, curve = 1e-17, []
    for here, there in zip(found, expected, strict=True):
        largest = max(largest, abs(here / there - 1))
        curve.append(largest)
    return curve
