"""The two terms of a ring's time, against the number of ranks."""

from collections.abc import Sequence

from helpers.cost_model import critical_path
from helpers.figures.style import (
    PREDICTION,
    Drawing,
    drawing,
    label_line,
    series_colour,
    styled,
)
from helpers.link import Link

_WIDTH = 4.8  # inches; a phone shrinks it by a quarter
_DASHES = ("-", "--")


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
