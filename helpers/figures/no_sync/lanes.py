"""A window of micro-batches on two lanes, compute and communication: drawn from a model."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.patches import Patch

from helpers.figures.style import INK, PAPER, Drawing, drawing, series_colour, styled
from helpers.link import LINKS

WIDTH = 5.0
FORWARD, BACKWARD = "#b9cfe3", "#2b6ca3"
_SENDING = {"facecolor": PAPER, "edgecolor": series_colour(1), "linewidth": 0.8, "hatch": "////"}
LOOPS = ("sync each", "no_sync around\nbackward only", "no_sync around\nboth")

#: What the exploration emulates: one rank's work on a micro-batch, and the gradients' buckets.
FORWARD_S, BACKWARD_S, NUM_BUCKETS, BUCKET_BYTES, MICRO_BATCH_SIZE = 0.02, 0.04, 4, 25e6, 8

Spans = list[tuple[float, float]]


@dataclass(frozen=True)
class Lanes:
    """(start, length) of all forwards, backwards and messages; the end of the last of them."""

    forward: Spans
    backward: Spans
    sending: Spans
    end_s: float


def window_spans(
    syncs: list[bool], forward_s: float, backward_s: float, message_s: float, num_buckets: int = 1
) -> Lanes:
    """Return when a rank computes and sends in one window; one of `syncs` a micro-batch. Local.

    Backward finishes its buckets in equal parts, and a bucket leaves once it is finished and the
    one before has arrived, in message_s seconds. What syncs ends with its last message.
    """
    forward, backward, sending, now_s = [], [], [], 0.0
    for syncs_here in syncs:
        forward.append((now_s, forward_s))
        start_s = now_s + forward_s
        backward.append((start_s, backward_s))
        now_s = free_s = start_s + backward_s
        for bucket in range(num_buckets) if syncs_here else ():
            ready_s = start_s + backward_s * (bucket + 1) / num_buckets
            free_s = max(ready_s, free_s if bucket else 0.0)
            sending.append((free_s, message_s))
            now_s = free_s = free_s + message_s
    return Lanes(forward, backward, sending, now_s)


@styled()
def three_loops(num_micro_batches: int) -> Drawing:
    """Three loops over one window, each with a lane of compute and one of communication. Local.

    Raises ValueError for less than one micro-batch.
    """
    if num_micro_batches < 1:
        raise ValueError(f"three_loops: found {num_micro_batches}, expected 1 micro-batch or more")
    each, last = _syncs(num_micro_batches)
    found = [window_spans(syncs, 1, 2, 2.5) for syncs in (each, each, last)]
    figure = drawing(WIDTH, 3.0, f"Three loops over {num_micro_batches} micro-batches, as lanes")
    _draw(figure, LOOPS, found)
    figure.axes[0].set(xlabel="time")
    figure.axes[0].set_xticks([])
    return figure


@styled()
def window_on_link(micro_batches: int, ranks: int, link: str) -> Drawing:
    """Two loops over one window on a named link, to scale, with samples per second. Local.

    A model: 4 buckets of 25 MB, 20 ms forward and 40 ms backward for 8 samples; all-reduces are
    priced as a ring. Raises KeyError for a link that is not in `LINKS`.
    """
    message_s = LINKS[link].ring_s(BUCKET_BYTES, ranks)
    found = [
        window_spans(syncs, FORWARD_S, BACKWARD_S, message_s, NUM_BUCKETS)
        for syncs in _syncs(micro_batches)
    ]
    samples = micro_batches * MICRO_BATCH_SIZE * ranks
    rates = [samples / lanes.end_s for lanes in found]
    shows = f"Samples per second: sync each {rates[0]:.3g}, no_sync {rates[1]:.3g}"
    figure = drawing(WIDTH, 2.5, shows)
    names = zip(("sync each", "no_sync"), rates, strict=True)
    _draw(figure, [f"{name}\n{rate:,.0f} samples/s" for name, rate in names], found)
    figure.axes[0].set(xlabel="s")
    figure.axes[0].locator_params(axis="x", nbins=5)
    return figure


def _syncs(num_micro_batches: int) -> tuple[list[bool], list[bool]]:
    """Which micro-batches synchronise: all of them, or the last."""
    return [True] * num_micro_batches, [False] * (num_micro_batches - 1) + [True]


def _draw(figure: Drawing, names: Sequence[str], found: Sequence[Lanes]) -> None:
    """Two lanes a name: compute above, communication below; a bar where the window ends."""
    (axes,) = figure.axes
    edge = {"edgecolor": INK, "linewidth": 0.4}
    for row, lanes in enumerate(found):
        top = 2.6 * row
        axes.broken_barh(lanes.forward, (top, 0.9), facecolor=FORWARD, **edge)
        axes.broken_barh(lanes.backward, (top, 0.9), facecolor=BACKWARD, **edge)
        axes.broken_barh(lanes.sending, (top + 1, 0.9), **_SENDING)
        axes.plot([lanes.end_s] * 2, [top - 0.15, top + 2.05], color=INK, linewidth=1.2)
    axes.set_yticks([2.6 * row + 0.95 for row in range(len(found))], names)
    axes.set(xlim=(0, 1.01 * found[0].end_s), ylim=(2.6 * len(found) - 0.4, -0.3))
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    handles = [
        Patch(facecolor=FORWARD, label="forward", **edge),
        Patch(facecolor=BACKWARD, label="backward", **edge),
        Patch(label="all-reduce", **_SENDING),
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=3, columnspacing=1.2)
