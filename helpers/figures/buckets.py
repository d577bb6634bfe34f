"""Figures of chapter 10: the size of a bucket; compute and communication in lanes."""

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
from helpers.problems import Step

WIDTH = 5.4
FORWARD = "#c4c4c4"
MS = 1e3

#: (start, end, bucket) in seconds since the step began; bucket -1: the forward pass.
Part = tuple[float, float, int]
Lanes = tuple[Sequence[Part], Sequence[Part]]


@styled()
def bucket_sizes(
    predicted_s: Mapping[int, float], measured_s: Mapping[int, Sequence[float]], bound_s: float
) -> Drawing:
    """Seconds of a step against the cap of a bucket: a line predicted, points measured. Local.

    predicted_s: cap in bytes -> seconds; measured_s: cap -> the seconds of its runs, of which the
    fastest is the point and the others the bar. bound_s: the lower bound, dotted.
    """
    figure = drawing(WIDTH, 3.4, "A step against the size of its buckets, on an emulated link")
    (axes,) = figure.axes
    axes.plot([cap / 1e6 for cap in predicted_s], [MS * s for s in predicted_s.values()],
              color=PREDICTION, drawstyle="steps-post")  # fmt: skip
    for cap, seconds in measured_s.items():
        ends = [MS * min(seconds), MS * max(seconds)]
        axes.plot([cap / 1e6] * 2, ends, color=MEASUREMENT, linewidth=1.2)
        axes.plot(cap / 1e6, ends[0], "o", color=MEASUREMENT)
    first, last = min(predicted_s) / 1e6, max(predicted_s) / 1e6
    axes.plot([first, last], [MS * bound_s] * 2, color=INK, linestyle=":", linewidth=1.4)
    label_line(axes, last, MS * bound_s, "lower bound", INK, ha="right", xytext=(0, -8))
    axes.set_xscale("log")
    shown = sorted(cap / 1e6 for cap in measured_s)
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


def measured_lanes(step: Step, layers: Sequence[int], *, reverse: bool = False) -> Lanes:
    """Return the lanes of a timed step of a SleepingModel. Local.

    layers: how many layers each bucket holds, the last layer first; reverse: they were sent in
    the reverse of this order.
    """
    whole = sum(layers)
    bucket_of = [bucket for bucket, count in enumerate(layers) for _ in range(count)]
    compute = [
        (
            span.start_s - step.begin_s,
            span.end_s - step.begin_s,
            bucket_of[whole - 1 - span.layer] if span.name == "backward" else -1,
        )
        for span in step.spans
    ]
    sent = sorted(step.sent, key=lambda message: message.ready_s, reverse=reverse)
    return compute, [
        (message.ready_s - step.begin_s, message.done_s - step.begin_s, bucket)
        for bucket, message in enumerate(sent)
    ]


def hidden_share(lanes: Lanes) -> float:
    """Return the share of the time on the link that lies before the end of compute. Local."""
    compute, transfers = lanes
    over_s = max(end for _, end, _ in compute)
    whole_s = sum(end - start for start, end, _ in transfers)
    hidden_s = sum(max(0.0, min(end, over_s) - start) for start, end, _ in transfers)
    return hidden_s / whole_s if whole_s else 0.0


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
    step_end, exposed = max(end, compute_end), max(0.0, end - compute_end)
    many = f"{len(counts)} bucket{'s' if len(counts) > 1 else ''}"
    says = f"{many}, step {MS * step_end:.0f} ms, {MS * exposed:.0f} ms of it exposed"
    figure = drawing(5, 1.75, says)
    (axes,) = figure.axes
    _lane(axes, 0, lanes[0])
    _lane(axes, 1, lanes[1])
    axes.set_title(says, size=9.5)
    axes.set_yticks([0, 1], ["compute", "link"])
    axes.set(xlabel="ms since the step began", xlim=(0, 1.03 * MS * step_end), ylim=(1.7, -0.7))
    axes.grid(visible=False)
    return figure
