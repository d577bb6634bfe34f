"""Which rank holds which sum of which chunk: the ring step by step, and all steps at once."""

import math

from matplotlib.patches import Rectangle

from helpers.figures.all_reduce.schedule import Holding, Transfer, holdings, schedule
from helpers.figures.style import INK, PAPER, Drawing, drawing, styled

_WIDTH = 4.8  # inches; a phone shrinks it by a quarter
_PARTIAL, _WHOLE, _OWN = "#cfe0ee", "#0b5d8f", "#f6f6f6"
_NEW = 2.4  # line width of a cell that this step has changed


@styled()
def ring_step(world_size: int, step: int) -> Drawing:
    """Return the ring after a step: a row a rank, a column a chunk, an arrow a message. Local.

    A cell says whose numbers its sum contains; a thick frame, that this step changed it. Steps
    past the last show the end. ValueError: a world below 2, a step below 0.
    """
    steps, num_chunks = schedule("ring", world_size)
    if world_size < 2 or step < 0:
        raise ValueError(
            f"ring_step: found step {step} of {world_size} ranks, expected 0 or more, of 2 or more"
        )
    at = min(step, len(steps))
    sent = steps[at - 1] if 0 < step <= len(steps) else []
    height = 1.2 + 0.62 * world_size
    figure = drawing(_WIDTH, height, _ring_words(world_size, step, len(steps)), rows=0)
    figure.set_layout_engine("none")  # with fixed places a frame takes half the time
    axes = figure.add_axes((0.12, 0.6 / height, 0.87, 1 - 0.85 / height))
    held = holdings("ring", world_size)[at]
    _grid(axes, held, sent, gap=0.24, size=10 if world_size < 5 else 9)
    for transfer in sent:
        _arrow(axes, transfer, world_size)
    axes.set_xticks([chunk + 0.5 for chunk in range(num_chunks)], _names("chunk", num_chunks))
    axes.set_yticks([rank + 0.38 for rank in range(world_size)], _names("rank", world_size))
    axes.set_xlabel(_ring_words(world_size, step, len(steps)).replace(": ", ":\n", 1))
    axes.set(xlim=(0, num_chunks), ylim=(world_size + 0.12, -0.4))
    _without_frame(axes)
    axes.xaxis.tick_top()
    return figure


def _ring_words(world_size: int, step: int, last: int) -> str:
    """What has happened by now, in one line."""
    half = world_size - 1
    if step == 0:
        return (
            f"start, {world_size} ranks: each holds its own numbers, cut into {world_size} chunks"
        )
    if step > last:
        return f"finished since step {last}: every rank holds every sum"
    name = "reduce-scatter" if step <= half else "all-gather"
    text = f"{name}, step {step} of {last}: "
    if step == half:
        return text + "each rank owns one whole sum; the rest is left-overs"
    if step < half:
        return text + "each rank adds what it received"
    return text + ("every rank holds every sum" if step == last else "sums replace the left-overs")


def _names(word: str, count: int) -> list[str]:
    return [f"{word} {number}" for number in range(count)]


def _grid(axes, held: Holding, sent: list[Transfer], gap: float, size: float) -> None:
    """The cells, `gap` of each row left free below them."""
    changed = {(each.receiver, chunk) for each in sent for chunk in each.chunks}
    for rank, row in enumerate(held):
        for chunk, ranks in enumerate(row):
            is_whole = len(ranks) == len(held)
            fill = _WHOLE if is_whole else _OWN if len(ranks) == 1 else _PARTIAL
            width = _NEW if (rank, chunk) in changed else 0.7
            box = Rectangle((chunk + 0.04, rank), 0.92, 1 - gap, fc=fill, ec=INK, lw=width)
            axes.add_artist(box)
            text = "sum" if is_whole else "+".join(map(str, sorted(ranks)))
            how = {"color": PAPER, "weight": "bold"} if is_whole else {}
            middle = rank + (1 - gap) / 2
            axes.text(chunk + 0.5, middle, text, ha="center", va="center", size=size, **how)


def _arrow(axes, transfer: Transfer, world_size: int) -> None:
    """From a cell down to the next rank's; from the last rank out below, and in again on top."""
    style = {"arrowstyle": "-|>", "color": INK, "lw": 1.3, "shrinkA": 0, "shrinkB": 0}
    for chunk in transfer.chunks:
        x, y = chunk + 0.5, transfer.sender + 0.76
        axes.annotate("", (x, y + 0.25), (x, y), arrowprops=style)
        if transfer.sender == world_size - 1:
            axes.annotate("", (x, 0), (x, -0.3), arrowprops=style)


@styled()
def chunks_by_step(algorithm: str, world_size: int, columns: int = 2) -> Drawing:
    """Return all steps of an all-reduce that sends chunks, one small grid a step. Local.

    A row is a rank, a column a chunk; a thick frame marks what the step changed.
    """
    steps, num_chunks = schedule(algorithm, world_size)
    states = holdings(algorithm, world_size)
    rows = math.ceil(len(states) / columns)
    figure = drawing(
        _WIDTH,
        rows * (0.52 + 0.27 * world_size),
        f"{algorithm.replace('_', '-')} on {world_size} ranks: sums held after each step",
        rows,
        columns,
        squeeze=False,
    )
    for number, axes in enumerate(figure.axes):
        if number >= len(states):
            axes.set_axis_off()
            continue
        _grid(
            axes,
            states[number],
            steps[number - 1] if number else [],
            gap=0.1,
            size=9 if num_chunks < 5 else 7,
        )
        axes.set(xlim=(0, num_chunks), ylim=(world_size, -0.1), xticks=[])
        axes.set_yticks([rank + 0.45 for rank in range(world_size)], range(world_size))
        axes.set_xlabel(f"after step {number}" if number else "start", fontsize=10)
        axes.set_ylabel("rank" if number % columns == 0 else "")
        _without_frame(axes)
    return figure


def _without_frame(axes) -> None:
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=9)
