"""Figures of the chapter "Where the memory goes": bytes over a step, over depth, against cards."""

from collections.abc import Mapping, Sequence

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
from helpers.memory import TrainingBytes, training_bytes

#: What the makers' data sheets call the memory of one card, taken as GB (10**9 bytes).
CARDS_GB = {"RTX 4090": 24, "H100": 80, "H200": 141, "MI300X": 192}

_TERMS = {
    "parameters": "parameters",
    "copies": "second copy",
    "gradients": "gradients",
    "optimizer_state": "optimizer state",
    "activations": "activations",
}
_HATCHES = ("", "//", "..", "\\\\", "xx")


@styled()
def step_curve(history: Sequence[int], phases: Sequence[tuple[str, int]]) -> Drawing:
    """Return live bytes after each change, with the phases of training as bands. Local.

    ``history`` is LiveBytes.history; each phase is (name, how long the history was at its end).
    """
    figure = drawing(6, 3, f"Live bytes over {', '.join(name for name, _ in phases)}")
    axes = figure.axes[0]
    megabytes = [0, *(live_bytes / 1e6 for live_bytes in history)]
    axes.step(range(len(megabytes)), megabytes, where="post", color=MEASUREMENT, linewidth=1.2)
    top = 1.16 * max(megabytes)
    starts = [0, *(end for _, end in phases)]
    for index, ((name, end), start) in enumerate(zip(phases, starts, strict=False)):
        if index % 2:
            axes.axvspan(start, end, color="#eeeeee", linewidth=0, zorder=0)
        axes.text((start + end) / 2, top, name, ha="center", va="top", fontsize=9.5)
    axes.set(xlim=(0, len(history)), ylim=(0, top), ylabel="live memory (MB)")
    axes.set_xlabel("allocations and frees, in order")
    axes.grid(visible=False, axis="x")
    return figure


@styled()
def against_depth(
    depths: Sequence[int],
    predicted: Mapping[str, Sequence[int]],
    measured: Mapping[str, Sequence[int]],
) -> Drawing:
    """Return bytes against depth, for each name a predicted line and its measured points. Local."""
    figure = drawing(6, 3, f"Peak bytes against depth: {', '.join(predicted)}")
    axes = figure.axes[0]
    for index, (name, line) in enumerate(predicted.items()):
        colour = series_colour(index)
        axes.plot(depths, [y / 1e6 for y in line], color=PREDICTION, linewidth=1.2)
        points = [y / 1e6 for y in measured[name]]
        axes.plot(depths, points, series_marker(index), color=colour)
        label_line(axes, depths[-1], points[-1], name, colour, xytext=(8, 0))
    axes.set(xlabel="blocks of the model", ylabel="peak memory (MB)", xticks=depths)
    axes.set(xlim=(0, 1.42 * depths[-1]), ylim=(0, None))
    return figure


@styled()
def against_cards(
    rows: Mapping[str, TrainingBytes], measured: Mapping[str, int] | None = None
) -> Drawing:
    """Return one stacked bar a row, in GB, with the memory of some cards as lines. Local.

    ``measured`` puts a point on the bar of the same name.
    """
    measured = measured or {}
    figure = drawing(6, 1.9 + 0.42 * len(rows), f"Bytes by term against cards: {', '.join(rows)}")
    axes = figure.axes[0]
    for place, (name, terms) in enumerate(rows.items()):
        left = 0.0
        for index, term in enumerate(_TERMS):
            width = getattr(terms, term) / 1e9
            how = {"color": series_colour(index), "hatch": _HATCHES[index], "edgecolor": "white"}
            axes.barh(place, width, left=left, height=0.6, linewidth=0, **how)
            left += width
        if name in measured:
            axes.plot(measured[name] / 1e9, place, "o", color=MEASUREMENT, mec="white", ms=7)
    _finish_cards(axes, rows, measured)
    return figure


def _finish_cards(axes, rows: Mapping[str, TrainingBytes], measured: Mapping[str, int]) -> None:
    used = [i for i, t in enumerate(_TERMS) if any(getattr(row, t) for row in rows.values())]
    for name, size in CARDS_GB.items():
        axes.axvline(size, color=INK, linewidth=1, linestyle="--")
        axes.annotate(
            f"{name}\n{size} GB",
            (size, 1),
            xycoords=("data", "axes fraction"),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            fontsize=8.5,
        )
    handles = [axes.barh(0, 0, color=series_colour(i), hatch=_HATCHES[i], ec="white") for i in used]
    names = [list(_TERMS.values())[i] for i in used]
    if measured:
        handles += axes.plot([], [], "o", color=MEASUREMENT, ms=7)
        names.append("measured peak")
    axes.legend(handles, names, loc="upper center", bbox_to_anchor=(0.4, -0.32), ncols=3)
    axes.set(yticks=range(len(rows)), yticklabels=list(rows), xlabel="memory (GB)")
    axes.set(xlim=(0, 215), ylim=(len(rows) - 0.5, -0.5))
    axes.grid(visible=False)


def fits(optimizer: str, precision: str, billion_parameters: float) -> Drawing:
    """Return the bar of one model, before activations, against the cards. Local."""
    terms = training_bytes(round(billion_parameters * 1e9), optimizer, precision)
    return against_cards({f"{terms.total / 1e9:.0f} GB": terms})
