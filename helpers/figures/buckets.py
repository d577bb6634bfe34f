"""Figures of chapter 10: the ladder, the size of a bucket, compute and communication in lanes."""

from collections.abc import Iterable, Mapping, Sequence

from helpers import cost_model
from helpers.figures.style import (
    INK,
    MEASUREMENT,
    PREDICTION,
    Drawing,
    drawing,
    label_line,
    series_colour,
    styled,
)
from helpers.link import Link

WIDTH = 5.4
COMPUTE = "#dcdcdc"  # what no averaging could shorten
FORWARD = "#c4c4c4"
MS = 1e3

#: (start, end, bucket) in seconds since the step began; bucket -1: the forward pass.
Part = tuple[float, float, int]
Lanes = tuple[Sequence[Part], Sequence[Part]]


@styled()
def ladder(
    predicted_s: Mapping[str, float],
    measured_s: Mapping[str, Sequence[float]],
    compute_s: float,
    bound_s: float,
) -> Drawing:
    """A row a way: compute in grey, the predicted step as a tick, measured ones as points. Local.

    predicted_s, measured_s: way -> seconds of a step, one predicted, several measured. compute_s:
    of forward and backward; bound_s: the lower bound, dotted.
    """
    figure = drawing(
        WIDTH, 0.9 + 0.42 * len(predicted_s), "Steps on an emulated link: predicted, measured"
    )
    (axes,) = figure.axes
    for row, (name, expected) in enumerate(predicted_s.items()):
        axes.barh(row, MS * compute_s, height=0.5, color=COMPUTE)
        axes.plot([MS * compute_s, MS * expected], [row, row], color=PREDICTION, linewidth=1)
        axes.plot([MS * expected] * 2, [row - 0.32, row + 0.32], color=PREDICTION, linewidth=2.4)
        found = [MS * s for s in measured_s.get(name, ())]
        axes.plot(found, [row] * len(found), "o", color=MEASUREMENT, markersize=4)
    axes.axvline(MS * bound_s, color=INK, linestyle=":", linewidth=1.4)
    axes.text(MS * compute_s / 2, 0, "compute", ha="center", va="center", size=9)
    axes.set_yticks(range(len(predicted_s)), list(predicted_s))
    axes.set(xlabel="one step (ms), emulated link", ylim=(len(predicted_s) - 0.4, -0.6))
    axes.set_xlim(0, None)
    axes.grid(visible=False, axis="y")
    return figure


@styled()
def bucket_sizes(
    predicted_s: Mapping[int, float],
    measured_s: Mapping[int, Sequence[float]],
    bound_s: float,
    plan_s: float,
) -> Drawing:
    """Seconds of a step against the cap of a bucket: a line predicted, points measured. Local.

    predicted_s: cap in bytes -> seconds; measured_s: cap -> the seconds of its runs, of which the
    fastest is the point and the others the bar. bound_s: the lower bound, dotted; plan_s: what
    the best plan is predicted to take, dashed.
    """
    figure = drawing(WIDTH, 3.4, "A step against the size of its buckets, on an emulated link")
    (axes,) = figure.axes
    axes.plot([cap / 1e6 for cap in predicted_s], [MS * s for s in predicted_s.values()],
              color=PREDICTION, drawstyle="steps-post")  # fmt: skip
    for cap, seconds in measured_s.items():
        ends = [MS * min(seconds), MS * max(seconds)]
        axes.plot([cap / 1e6] * 2, ends, color=MEASUREMENT, linewidth=1.2)
        axes.plot(cap / 1e6, ends[0], "o", color=MEASUREMENT)
    first, last = (edge / 1e6 for edge in (min(predicted_s), max(predicted_s)))
    axes.plot([first, last], [MS * plan_s] * 2, color=series_colour(2), linestyle="--", linewidth=1)
    axes.plot([first, last], [MS * bound_s] * 2, color=INK, linestyle=":", linewidth=1.4)
    label_line(axes, last, MS * plan_s, "best plan", series_colour(2), ha="right", xytext=(0, 7))
    label_line(axes, last, MS * bound_s, "lower bound", INK, ha="right", xytext=(0, -8))
    axes.set_xscale("log")
    shown = [cap / 1e6 for cap in measured_s]
    axes.set_xticks(shown, [f"{cap:g}" for cap in shown])
    axes.minorticks_off()
    axes.set(xlabel="cap of a bucket (MB)", ylabel="one step (ms)")
    axes.set_ylim(0.94 * MS * bound_s, None)
    return figure


@styled()
def timeline(steps: Mapping[str, Lanes], bound_s: float | None = None) -> Drawing:
    """A pair of lanes a way: what the layers did, and what was on the link. Local.

    steps: way -> (parts of compute, transfers), each (start, end, bucket) in seconds since the
    step began. A bucket has one colour in both lanes; the forward pass is grey. bound_s: dotted.
    """
    figure = drawing(
        WIDTH, 0.8 + 0.95 * len(steps), f"Compute and communication in time: {', '.join(steps)}"
    )
    (axes,) = figure.axes
    ticks = []
    for row, (name, (compute, transfers)) in enumerate(steps.items()):
        top = 2.6 * row
        _lane(axes, top, compute)
        _lane(axes, top + 1, transfers)
        ticks += [(top, f"{name}: compute"), (top + 1, "link")]
        end = MS * max(part[1] for part in (*compute, *transfers))
        label_line(axes, end, top + 1, f"{end:.0f} ms", INK, xytext=(4, 0))
    if bound_s is not None:
        axes.axvline(MS * bound_s, color=INK, linestyle=":", linewidth=1.4)
    _finish(axes, ticks, steps)
    return figure


def _lane(axes, y: float, parts: Iterable[Part]) -> None:
    for colour in sorted({_colour(part) for part in parts}):
        spans = [(MS * p[0], MS * (p[1] - p[0])) for p in parts if _colour(p) == colour]
        axes.broken_barh(spans, (y - 0.42, 0.84), facecolor=colour, linewidth=0)


def _colour(part: Part) -> str:
    return FORWARD if part[2] < 0 else series_colour(part[2])


def _finish(axes, ticks: list[tuple[float, str]], steps: Mapping[str, Lanes]) -> None:
    axes.set_yticks([y for y, _ in ticks], [text for _, text in ticks])
    last = max(part[1] for lanes in steps.values() for parts in lanes for part in parts)
    axes.set(xlabel="ms since the step began", xlim=(0, 1.14 * MS * last))
    axes.set_ylim(ticks[-1][0] + 0.7, -0.7)
    axes.grid(visible=False, axis="y")


def predicted_lanes(
    layers: Sequence[int], layer_bytes: int, forward_s: float, backward_s: float, link: Link,
    *, overlap: bool = True,
) -> Lanes:  # fmt: skip
    """Return the lanes of a step of equal layers as the model has them. Local.

    layers: how many layers each bucket holds, in sending order; forward_s and backward_s are of
    one layer. Without overlap every bucket is ready only at the end of backward.
    """
    whole = sum(layers)
    begin = whole * forward_s
    edges = [0]
    for count in layers:
        edges.append(edges[-1] + count)
    ends = [begin + backward_s * edge for edge in edges]
    ready = ends[1:] if overlap else [ends[-1]] * len(layers)
    sizes = [count * layer_bytes for count in layers]
    transfers = cost_model.transfers_s(sizes, ready, link.world_size or 2, link)
    compute = [(0.0, begin, -1)]
    compute += [(ends[i], ends[i + 1], i) for i in range(len(layers))]
    return compute, [(start, end, i) for i, (start, end) in enumerate(transfers)]


LAYERS, LAYER_BYTES, LAYER_FORWARD_S, LAYER_BACKWARD_S = 24, 250_000, 4e-3, 8e-3


@styled()
def overlap_model(
    latency_ms: float, bandwidth_mb_per_s: float, layers_per_bucket: int | str
) -> Drawing:
    """One predicted step of 24 layers of 250 KB on a ring of 8 ranks, in two lanes. Local.

    latency_ms: of one message; bandwidth_mb_per_s: of one direction; layers_per_bucket: "best" is
    the plan with the earliest end. Layers take 4 ms forward and 8 ms backward.
    """
    link = Link(latency_ms * 1e-3, bandwidth_mb_per_s * 1e-3, world_size=8)
    ready = [LAYER_BACKWARD_S * (layer + 1) for layer in range(LAYERS)]
    if layers_per_bucket == "best":
        cuts = cost_model.best_cuts([LAYER_BYTES] * LAYERS, ready, 8, link)
    else:
        cuts = [*range(layers_per_bucket, LAYERS, layers_per_bucket), LAYERS]
    counts = [b - a for a, b in zip([0, *cuts], cuts, strict=False)]
    lanes = predicted_lanes(counts, LAYER_BYTES, LAYER_FORWARD_S, LAYER_BACKWARD_S, link)
    compute_end, end = (max(part[1] for part in parts) for parts in lanes)
    figure = drawing(
        5, 1.75, f"{len(counts)} buckets: a step of {MS * max(end, compute_end):.0f} ms"
    )
    (axes,) = figure.axes
    _lane(axes, 0, lanes[0])
    _lane(axes, 1, lanes[1])
    step_end, exposed = max(end, compute_end), max(0.0, end - compute_end)
    axes.set_title(
        f"{len(counts)} buckets, step {MS * step_end:.0f} ms, {MS * exposed:.0f} ms of it exposed",
        size=9.5,
    )
    axes.set_yticks([0, 1], ["compute", "link"])
    axes.set(xlabel="ms since the step began", xlim=(0, 1.03 * MS * step_end), ylim=(1.7, -0.7))
    axes.grid(visible=False)
    return figure
