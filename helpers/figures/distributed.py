"""Figures of the chapter "DistributedDataParallel": filling buckets, a trace, CUDA streams."""

from collections.abc import Mapping, Sequence

import torch
from matplotlib.patches import Rectangle

from helpers.buckets import plan_buckets
from helpers.figures.style import (
    INK,
    PAPER,
    Drawing,
    drawing,
    series_colour,
    styled,
)

WIDTH = 5.0
COMPUTE, MESSAGE, EXPOSED = series_colour(0), series_colour(4), series_colour(1)
_WAITING, _READY = "#f1f1f1", "#cfe0ee"

#: Layer numbers in the order in which backward reaches them, and in which they were registered.
BACKWARD_ORDER = (7, 6, 5, 4, 3, 2, 1, 0)
REGISTERED = {
    "as in forward": (0, 1, 2, 3, 4, 5, 6, 7),
    "last layer first": (7, 0, 1, 2, 3, 4, 5, 6),
    "backwards": (7, 6, 5, 4, 3, 2, 1, 0),
}
_LAYER_BYTES, _CAP_BYTES = 2**20, 2**21


def buckets_of(registered: str, iteration: int) -> list[list[int]]:
    """Return the layers of each bucket, in sending order, of 1 MiB each under caps of 2 MiB. Local.

    registered: a key of REGISTERED. Iteration 0 goes by that order reversed; later ones by the
    order observed in backward.
    """
    order = REGISTERED[registered][::-1] if iteration == 0 else BACKWARD_ORDER
    layers = {n: torch.empty(_LAYER_BYTES // 4, device="meta") for n in order}
    numbers = {id(layer): n for n, layer in layers.items()}
    plan = plan_buckets(list(layers.values()), _CAP_BYTES, _CAP_BYTES)
    return [[numbers[id(layer)] for layer in bucket] for bucket in plan]


def sent_after(plan: Sequence[Sequence[int]], gradients_ready: int) -> int:
    """Return how many buckets have been sent: a full one waits for those ahead of it. Local."""
    ready = set(BACKWARD_ORDER[:gradients_ready])
    full = [set(bucket) <= ready for bucket in plan]
    return full.index(False) if False in full else len(full)


@styled()
def bucket_filling(registered: str, iteration: int, gradients_ready: int) -> Drawing:
    """Backward of eight layers part of the way: gradients that are there, buckets sent. Local.

    registered: a key of REGISTERED; iteration: 0, or later; gradients_ready: 0 to 8.
    """
    plan = buckets_of(registered, iteration)
    ready, num_sent = set(BACKWARD_ORDER[:gradients_ready]), sent_after(plan, gradients_ready)
    shows = f"{gradients_ready} of 8 gradients ready, {num_sent} of {len(plan)} buckets sent"
    figure = drawing(WIDTH, 2.3, shows)
    (axes,) = figure.axes
    for column, layer in enumerate(BACKWARD_ORDER):
        _cell(axes, column, 2, f"{layer}", _READY if layer in ready else _WAITING)
    for number, bucket in enumerate(plan):
        is_sent = number < num_sent
        for place, layer in enumerate(bucket):
            fill = MESSAGE if is_sent else _READY if layer in ready else _WAITING
            ink = PAPER if is_sent else INK
            _cell(axes, 2 * number + place, 0.55, f"{layer}" if layer in ready else "", fill, ink)
        frame = Rectangle((2 * number + 0.04, 0.5), 1.92, 0.9, fill=False, ec=INK, lw=2)
        axes.add_artist(frame)
        state = "sent" if is_sent else "full, waits" if set(bucket) <= ready else ""
        axes.text(2 * number + 1, 0.15, state, ha="center", va="center", size=9)
    axes.text(0, 3.05, "gradients, in the order of backward", size=9.5, va="center")
    axes.text(0, 1.65, "buckets, in the order in which they are sent", size=9.5, va="center")
    axes.set(xlim=(-0.05, 8.05), ylim=(-0.1, 3.3))
    axes.set_axis_off()
    return figure


def _cell(axes, column: float, y: float, text: str, fill: str, ink: str = INK) -> None:
    box = Rectangle((column + 0.08, y), 0.84, 0.8, facecolor=fill, edgecolor=INK, linewidth=0.7)
    axes.add_artist(box)
    axes.text(column + 0.5, y + 0.38, text, ha="center", va="center", size=10, color=ink)


Interval = tuple[float, float]


@styled()
def trace(steps: Mapping[str, Mapping[str, Sequence[Interval]]]) -> Drawing:
    """Two lanes a step: layers that compute, all-reduces under way; the exposed part marked. Local.

    steps: name -> {"compute": intervals, "all-reduce": ..., "exposed": ...}, in milliseconds.
    """
    figure = drawing(WIDTH, 0.7 + 1.15 * len(steps), "Lanes of a trace", rows=len(steps),
                     squeeze=False, sharex=True)  # fmt: skip
    told = []
    for axes, (name, lanes) in zip(figure.axes, steps.items(), strict=True):
        for y, lane, colour in ((1, "compute", COMPUTE), (0, "all-reduce", MESSAGE)):
            _bars(axes, lanes[lane], y, facecolor=colour, edgecolor=PAPER, linewidth=0.5)
        _bars(axes, lanes["exposed"], 0, facecolor=EXPOSED, edgecolor=PAPER, hatch="////")
        exposed_ms = sum(end - start for start, end in lanes["exposed"])
        told.append(f"{name}: {exposed_ms:.0f} ms exposed")
        axes.set_yticks([0.4, 1.4], ["all-reduce", "compute"])
        axes.set_ylabel(name)
        axes.set(ylim=(-0.1, 1.9))
        axes.grid(visible=False, axis="y")
    figure.axes[-1].set_xlabel("ms since the step began (hatched: exposed)")
    figure.shows = "Lanes of a trace; " + ", ".join(told)
    return figure


def _bars(axes, intervals: Sequence[Interval], y: float, **how) -> None:
    axes.broken_barh([(start, end - start) for start, end in intervals], (y, 0.8), **how)


#: Lane, start, width, text of what runs there; made up, not measured.
_STREAM_WORK = (
    ("host", 0.0, 1.1, "launch"),
    ("host", 1.2, 1.1, "launch"),
    ("host", 2.4, 1.1, "launch"),
    ("host", 3.6, 0.8, "wait"),
    ("host", 4.5, 1.5, "optimizer"),
    ("compute", 0.5, 1.9, "backward 0"),
    ("compute", 2.5, 1.9, "backward 1"),
    ("compute", 4.5, 1.1, "2"),
    ("compute", 8.2, 1.6, "optimizer"),
    ("communication", 2.5, 1.8, "all-reduce 0"),
    ("communication", 4.5, 1.8, "all-reduce 1"),
    ("communication", 6.4, 1.7, "all-reduce 2"),
)
#: From a kernel's end to the one that waits for it: (x of one end, lane, x of the other, lane).
_STREAM_EVENTS = (
    (2.4, "compute", 2.5, "communication"),
    (4.4, "compute", 4.5, "communication"),
    (5.6, "compute", 6.4, "communication"),
    (8.1, "communication", 8.2, "compute"),
)
_LANES = {"host": 2, "compute": 1, "communication": 0}


@styled()
def streams() -> Drawing:
    """One backward on a GPU: what the host launches, and two streams that wait by events. Local.

    A drawing, not a measurement.
    """
    shows = "One backward on a GPU, drawn: the host launches ahead, two streams wait by events"
    figure = drawing(WIDTH + 0.6, 2.5, shows)
    (axes,) = figure.axes
    colours = {"host": "#6b6b6b", "compute": COMPUTE, "communication": MESSAGE}
    for lane, start, width, text in _STREAM_WORK:
        box = Rectangle((start, _LANES[lane]), width, 0.5, fc=colours[lane], ec=PAPER, lw=0.8)
        axes.add_artist(box)
        axes.text(start + width / 2, _LANES[lane] + 0.23, text, color=PAPER, size=7.5,
                  ha="center", va="center")  # fmt: skip
    arrow = {"arrowstyle": "-|>", "color": INK, "lw": 1.1, "shrinkA": 0, "shrinkB": 0}
    for x, lane, to_x, to_lane in _STREAM_EVENTS:
        down = _LANES[to_lane] < _LANES[lane]
        start, end = (0.0, 0.52) if down else (0.5, -0.02)
        place, to_place = (x, _LANES[lane] + start), (to_x, _LANES[to_lane] + end)
        axes.annotate("", to_place, place, arrowprops=arrow)
    axes.set_yticks(
        [y + 0.25 for y in _LANES.values()], ["host", "compute\nstream", "comm.\nstream"]
    )
    axes.set(xlim=(0, 9.8), ylim=(-0.1, 2.7), xticks=[], xlabel="time →")
    axes.grid(visible=False)
    axes.tick_params(axis="y", length=0)
    return figure
