"""Seconds of an all-reduce: against its size by algorithm, and the ring's two terms against n."""

from collections.abc import Mapping, Sequence

from helpers.cost_model import ALGORITHMS, all_reduce_s, critical_path
from helpers.figures.style import (
    INK,
    PREDICTION,
    Drawing,
    drawing,
    label_line,
    series_colour,
    series_marker,
    styled,
)
from helpers.link import LINKS, Link

_WIDTH = 4.8  # inches; a phone shrinks it by a quarter
_DASHES = ("-", "--", "-.", ":", (0, (6, 2, 1, 2, 1, 2)))
#: (median, least, greatest) seconds by size in bytes, of one algorithm.
Measured = Mapping[int, tuple[float, float, float]]


@styled()
def seconds_against_size(
    links: Mapping[str, Link],
    world_size: int,
    measured: Mapping[str, Mapping[str, Measured]],
    count: int,
) -> Drawing:
    """Return seconds against bytes, log-log, a panel a link, stacked. Local.

    links: name -> Link, whose predictions are the lines. measured: link's name -> algorithm ->
    points with their range, of `count` runs each. A diamond is where two predictions cross that
    are the best on either side.
    """
    figure = drawing(
        _WIDTH,
        0.5 + 3.1 * len(links),
        f"Seconds of an all-reduce against its size on {world_size} ranks: {', '.join(links)}",
        rows=len(links),
        squeeze=False,
    )
    for axes, (name, link) in zip(figure.axes, links.items(), strict=True):
        points = measured.get(name, {})
        sizes = [size for each in points.values() for size in each] or [1_000, 10_000_000]
        for algorithm, each in points.items():
            _points(axes, algorithm, each)
        _lines(axes, link, world_size, list(points) or ALGORITHMS, min(sizes), max(sizes))
        _crossings(axes, link, world_size, list(points) or ALGORITHMS, min(sizes), max(sizes))
        axes.set_title(name, loc="left", fontsize=10)
        axes.set_ylabel("milliseconds")
    runs = f"; points: median and range of {count}" if count else ""
    figure.axes[-1].set_xlabel(f"size of the tensor{runs}")
    return figure


def _lines(axes, link, world_size, algorithms, least: int, greatest: int, ylim=None) -> None:
    """Predictions, labelled on the right, the labels moved apart where lines end together."""
    sizes = _between(least, greatest)
    ends = []
    for algorithm in algorithms:
        line = [1e3 * all_reduce_s(algorithm, size, world_size, link) for size in sizes]
        index = ALGORITHMS.index(algorithm)
        dashes = _DASHES[index]
        axes.plot(sizes, line, color=series_colour(index), linestyle=dashes, linewidth=1.5)
        ends.append((line[-1], algorithm))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(ylim)
    low, high = axes.get_ylim()
    apart = (high / low) ** 0.075  # of two labels, as a ratio
    heights = []
    for end, _ in sorted(ends):
        heights.append(max(end, heights[-1] * apart) if heights else end)
    centre = sum(end / height for (end, _), height in zip(sorted(ends), heights, strict=True))
    for (_, algorithm), height in zip(sorted(ends), heights, strict=True):
        colour = series_colour(ALGORITHMS.index(algorithm))
        y, name = height * centre / len(ends), algorithm.replace("_", "-")
        label_line(axes, sizes[-1], y, name, colour, size=9)
    axes.set_xlim(sizes[0] / 1.3, sizes[-1] * (sizes[-1] / sizes[0]) ** 0.52)
    axes.minorticks_off()
    _bytes_axis(axes, least, greatest)


def _between(least: int, greatest: int, count: int = 41) -> list[int]:
    ratio = (greatest / least) ** (1 / (count - 1))
    return [round(least * ratio**index) for index in range(count)]


def _bytes_axis(axes, least: int, greatest: int) -> None:
    names = {10**3: "1 KB", 10**4: "10 KB", 10**5: "100 KB", 10**6: "1 MB", 10**7: "10 MB"}
    names |= {10**8: "100 MB", 10**9: "1 GB"}
    shown = {size: name for size, name in names.items() if least / 1.3 < size < greatest * 1.3}
    if len(shown) > 5:
        shown = {size: shown[size] for size in list(shown)[::3]}
    axes.set_xticks(list(shown), list(shown.values()), fontsize=9)


def _points(axes, algorithm: str, points: Measured) -> None:
    index = ALGORITHMS.index(algorithm)
    medians, lows, highs = zip(*points.values(), strict=True)
    below = [1e3 * (median - low) for median, low in zip(medians, lows, strict=True)]
    above = [1e3 * (high - median) for median, high in zip(medians, highs, strict=True)]
    axes.errorbar(
        list(points),
        [1e3 * median for median in medians],
        yerr=[below, above],
        fmt=series_marker(index),
        color=series_colour(index),
        markersize=6,
        elinewidth=1,
        capsize=3,
    )


def _crossings(axes, link, world_size, algorithms, least: int, greatest: int) -> None:
    """A diamond where the best algorithm changes."""
    sizes = _between(least, greatest, 401)
    best = [
        min(algorithms, key=lambda name: all_reduce_s(name, size, world_size, link))
        for size in sizes
    ]
    for size, before, after in zip(sizes[1:], best, best[1:], strict=False):
        if before != after:
            seconds = all_reduce_s(after, size, world_size, link)
            axes.plot([size], [1e3 * seconds], "D", mfc="none", mec=INK, ms=11, mew=1.2)


@styled()
def predicted_seconds(link: str, world_size: int) -> Drawing:
    """Return predicted seconds against bytes, log-log, for every algorithm on one link. Local.

    link: a name of `helpers.link.LINKS`.
    """
    figure = drawing(
        _WIDTH,
        3.3,
        f"Predicted seconds of an all-reduce against its size: {world_size} ranks, {link}",
        rows=0,
    )
    figure.set_layout_engine("none")  # with fixed places a frame takes half the time
    axes = figure.add_axes((0.14, 0.16, 0.85, 0.82))
    _lines(axes, LINKS[link], world_size, ALGORITHMS, 1_000, 1_000_000_000, ylim=(1e-3, 1e6))
    _crossings(axes, LINKS[link], world_size, ALGORITHMS, 1_000, 1_000_000_000)
    axes.set(xlabel="size of the tensor (predicted)", ylabel="milliseconds")
    return figure


@styled()
def ring_terms(link: Link, size_bytes: int, world_sizes: Sequence[int]) -> Drawing:
    """Return the two terms of a ring's predicted time against the number of ranks. Local."""
    shows = f"The two terms of a ring's time, {size_bytes} bytes, {list(world_sizes)} ranks"
    figure = drawing(_WIDTH, 3, shows)
    axes = figure.axes[0]
    paths = [critical_path("ring", size_bytes, world_size) for world_size in world_sizes]
    latency = [1e3 * path.messages * link.latency_s for path in paths]
    bandwidth = [1e-6 * path.sent_bytes / link.bandwidth_gb_per_s for path in paths]
    whole = [sum(terms) for terms in zip(latency, bandwidth, strict=True)]
    for index, (line, name) in enumerate(
        ((bandwidth, "bytes / bandwidth"), (latency, "messages × latency"))
    ):
        axes.plot(
            world_sizes,
            line,
            color=series_colour(index),
            linestyle=_DASHES[index],
            marker=series_marker(index),
        )
        label_line(axes, world_sizes[-1], line[-1], name, series_colour(index), size=9)
    axes.plot(world_sizes, whole, color=PREDICTION, linestyle=":")
    label_line(axes, world_sizes[-1], whole[-1], "both", PREDICTION, size=9)
    axes.set_xscale("log", base=2)
    axes.set_xticks(world_sizes, [str(world_size) for world_size in world_sizes])
    axes.set(xlabel="ranks n", ylabel="milliseconds")
    axes.set_xlim(None, world_sizes[-1] * (world_sizes[-1] / world_sizes[0]) ** 0.55)
    axes.minorticks_off()
    return figure
