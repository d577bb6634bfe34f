"""Figures of the chapter "Where the memory goes": bytes over a step, over depth, against cards."""

from collections.abc import Mapping, Sequence

from helpers.figures.style import (
    INK,
    MEASUREMENT,
    PAPER,
    PREDICTION,
    Drawing,
    drawing,
    label_line,
    series_colour,
    series_marker,
    styled,
)
from helpers.memory import LiveBytes, TrainingBytes, training_bytes

#: What the makers' data sheets call the memory of one card, taken as GB (10**9 bytes).
CARDS_GB = {"RTX 4090": 24, "H100": 80, "H200": 141, "MI300X": 192}

_TERMS = {
    "parameters": "parameters",
    "copies": "second copy",
    "gradients": "gradients",
    "optimizer_state": "optimizer state",
    "activations": "activations",
}
_COLOURS = {term: series_colour(index) for index, term in enumerate(_TERMS)}
_CENTRED = {"ha": "center", "va": "center", "fontsize": 9}


@styled()
def step_curve(run: LiveBytes) -> Drawing:
    """Return live bytes after each change, with the phases that were marked as bands. Local.

    What happened after the last mark is left out; so are phases in which nothing changed.
    """
    end = max(phase.end for phase in run.phases.values())
    megabytes = [0, *(live_bytes / 1e6 for live_bytes in run.history[:end])]
    figure = drawing(5, 3, f"Live bytes during {', '.join(run.phases)}")
    axes = figure.axes[0]
    axes.step(range(len(megabytes)), megabytes, where="post", color=MEASUREMENT, linewidth=1.2)
    axes.set(xlim=(0, end), ylim=(0, 1.3 * max(megabytes)), ylabel="live memory (MB)")
    axes.set_xlabel("allocations and frees, in order")
    axes.grid(visible=False, axis="x")
    start, bands = 0, {}
    for name, phase in run.phases.items():
        if phase.end > start:
            bands[name] = (start, phase.end)
            start = phase.end
    for index, (name, (left, right)) in enumerate(bands.items()):
        if index % 2:
            axes.axvspan(left, right, color="#eeeeee", linewidth=0, zorder=0)
        # Two rows, since neighbours may be narrower than their names.
        place = {"x": left + 4, "y": (1.27 - 0.09 * (index % 2)) * max(megabytes)}
        axes.text(**place, s=name, ha="left", va="top", fontsize=9)
    return figure


@styled()
def against_depth(rows: Sequence[tuple[str, int, int, int]]) -> Drawing:
    """Return bytes against depth, for each name a predicted line and its measured points. Local.

    Each row is (name, depth, predicted bytes, measured bytes); names in order, depths ascending.
    """
    names = list(dict.fromkeys(name for name, *_ in rows))
    figure = drawing(5, 3, f"Peak bytes against depth: {', '.join(names)}")
    axes = figure.axes[0]
    for index, name in enumerate(names):
        depths, predicted, measured = zip(*(row[1:] for row in rows if row[0] == name), strict=True)
        colour = series_colour(index)
        axes.plot(depths, [y / 1e6 for y in predicted], color=PREDICTION, linewidth=1.2)
        axes.plot(depths, [y / 1e6 for y in measured], series_marker(index), color=colour)
        label_line(axes, depths[-1], measured[-1] / 1e6, name, colour, xytext=(8, 0))
    axes.set(xlabel="blocks of the model", ylabel="peak memory (MB)", xticks=depths)
    axes.set(xlim=(0, 1.5 * depths[-1]), ylim=(0, None))
    return figure


@styled()
def against_cards(
    rows: Mapping[str, TrainingBytes],
    measured: Mapping[str, int] | None = None,
    terms: Sequence[str] = ("parameters", "gradients", "optimizer_state", "activations"),
) -> Drawing:
    """Return one stacked bar a row, in GB, with the memory of some cards as lines. Local.

    ``measured`` puts a point on the bar of the same name; ``terms`` are the parts of a bar.
    """
    measured = measured or {}
    figure = drawing(5, 1.9 + 0.48 * len(rows), f"Bytes by term against cards: {', '.join(rows)}")
    axes = figure.axes[0]
    for place, (name, parts) in enumerate(rows.items()):
        left = 0.0
        for term in terms:
            width, colour = getattr(parts, term) / 1e9, _COLOURS[term]
            bar = {"color": colour, "edgecolor": PAPER, "linewidth": 1}
            axes.barh(place, width, left=left, height=0.6, **bar)
            if width > 12:
                ground = {"facecolor": colour, "edgecolor": "none", "pad": 1}
                how = {"color": PAPER, "bbox": ground, "zorder": 3, **_CENTRED}
                axes.text(left + width / 2, place, f"{width:.0f}", **how)
            left += width
        if name in measured:
            axes.plot(measured[name] / 1e9, place - 0.38, "v", color=MEASUREMENT, ms=7)
    _finish_cards(axes, list(rows), terms, has_points=bool(measured))
    return figure


def _finish_cards(axes, names: list[str], terms: Sequence[str], has_points: bool) -> None:
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
    handles = [axes.barh(0, 0, color=_COLOURS[term]) for term in terms]
    labels = [_TERMS[term] for term in terms]
    if has_points:
        handles += axes.plot([], [], "v", color=MEASUREMENT, ms=7)
        labels.append("measured peak")
    axes.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.4, -0.32), ncols=3)
    axes.set(
        yticks=range(len(names)),
        yticklabels=[name.replace(", ", ",\n") for name in names],
        xlabel="memory (GB)",
    )
    axes.set(xlim=(0, 245), ylim=(len(names) - 0.5, -0.5))
    axes.grid(visible=False)


def before_activations(optimizer: str, precision: str, billion_parameters: float) -> Drawing:
    """Return the bar of one model, before activations, against the cards. Local."""
    terms = training_bytes(round(billion_parameters * 1e9), optimizer, precision)
    parts = ("parameters", "copies", "gradients", "optimizer_state")
    return against_cards({f"{terms.total / 1e9:.0f} GB": terms}, terms=parts)
