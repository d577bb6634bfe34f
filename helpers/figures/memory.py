"""Figures of the chapter "Where the memory goes": bytes over a step, by size, against cards."""

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
def against_size(rows: Sequence[tuple[bool, int, int, int, int]]) -> Drawing:
    """Return peak bytes against depth (above) and batch (below), predicted and counted. Local.

    Each row is (checkpointed, depth, batch size, predicted bytes, counted bytes). Above stand the
    rows with the largest batch, below those with the largest depth.
    """
    deepest, most = max(row[1] for row in rows), max(row[2] for row in rows)
    figure = drawing(5, 5.6, "Peak bytes against depth and against batch size", rows=2)
    above, below = figure.axes
    _sizes(above, [(row[0], row[1], *row[3:]) for row in rows if row[2] == most])
    _sizes(below, [(row[0], row[2], *row[3:]) for row in rows if row[1] == deepest])
    above.set_xlabel(f"blocks of the model ({most} pieces of text)")
    below.set_xlabel(f"pieces of text in the batch ({deepest} blocks)")
    return figure


def _sizes(axes, rows: list[tuple[bool, int, int, int]]) -> None:
    """One panel: for each way a predicted line and its counted points, against a size."""
    for index, name in enumerate(("all kept", "checkpointed")):
        points = sorted(row[1:] for row in rows if row[0] == index)
        sizes, predicted, counted = zip(*points, strict=True)
        colour = series_colour(index)
        axes.plot(sizes, [y / 1e6 for y in predicted], color=PREDICTION, linewidth=1.2)
        axes.plot(sizes, [y / 1e6 for y in counted], series_marker(index), color=colour)
        label_line(axes, sizes[-1], counted[-1] / 1e6, name, colour, xytext=(8, 0))
    axes.set(xlim=(0, 1.5 * sizes[-1]), ylim=(0, None), xticks=sizes, ylabel="peak memory (MB)")


@styled()
def against_cards(
    rows: Mapping[str, TrainingBytes],
    counted: Mapping[str, int] | None = None,
    terms: Sequence[str] = ("parameters", "copies", "optimizer_state", "gradients", "activations"),
) -> Drawing:
    """Return one stacked bar a row, in GB, with the memory of some cards as lines. Local.

    ``terms`` are the parts of a bar, left out where a row has none of them. ``counted`` puts a
    point on the bar of the same name, and a line where the peak is predicted: before the smaller
    of gradients and activations, which is drawn last and pale.
    """
    counted = counted or {}
    figure = drawing(5, 2.1 + 0.48 * len(rows), f"Bytes by term against cards: {', '.join(rows)}")
    axes = figure.axes[0]
    shown = [term for term in terms if any(getattr(parts, term) for parts in rows.values())]
    for place, (name, parts) in enumerate(rows.items()):
        solid_gb = (parts.peak if counted else parts.total) / 1e9
        _bar(axes, place, parts, shown, solid_gb)
        _cards_on_bar(axes, place, solid_gb, parts.total / 1e9)
        if name in counted:
            axes.plot([solid_gb] * 2, [place - 0.36, place + 0.36], color=INK, linewidth=2.2)
            axes.plot(counted[name] / 1e9, place - 0.44, "v", color=MEASUREMENT, ms=7)
    _finish_cards(axes, list(rows), shown, has_points=bool(counted))
    return figure


def _bar(axes, place: int, parts: TrainingBytes, terms: list[str], solid_gb: float) -> None:
    """The terms of a row side by side, the smaller of gradients and activations last."""
    last = min(("gradients", "activations"), key=lambda term: getattr(parts, term))
    left = 0.0
    for term in sorted(terms, key=lambda term: term == last):
        width, colour = getattr(parts, term) / 1e9, _COLOURS[term]
        is_pale = left + width > solid_gb + 1e-6
        look = {"facecolor": PAPER, "edgecolor": colour} if is_pale else {"facecolor": colour}
        if width:
            edge = {"edgecolor": PAPER, "linewidth": 1, **look}
            axes.barh(place, width, left=left, height=0.6, **edge)
        if width > 12:
            ground = {"facecolor": look["facecolor"], "edgecolor": "none", "pad": 1}
            how = {"color": colour if is_pale else PAPER, "bbox": ground, "zorder": 4, **_CENTRED}
            axes.text(left + width / 2, place, f"{width:.0f}", **how)
        left += width


def _cards_on_bar(axes, place: int, solid_gb: float, total_gb: float) -> None:
    """Cards' lines where a bar would hide them: white on what is solid, dark on what is pale."""
    for size in CARDS_GB.values():
        if size < total_gb - 0.5 and abs(size - solid_gb) > 0.5:
            colour = PAPER if size < solid_gb else INK
            ends = [place - 0.3, place + 0.3]
            axes.plot([size] * 2, ends, color=colour, linewidth=1.4, linestyle="--", zorder=3)


def _finish_cards(axes, names: list[str], terms: Sequence[str], has_points: bool) -> None:
    for name, size in CARDS_GB.items():
        axes.axvline(size, color=INK, linewidth=1, linestyle="--", zorder=0.5)
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
        handles.append(axes.barh(0, 0, facecolor=PAPER, edgecolor=INK, linewidth=1))
        handles += axes.plot([], [], color=INK, linewidth=2.2)
        handles += axes.plot([], [], "v", color=MEASUREMENT, ms=7)
        labels += ["never at the peak", "predicted peak", "counted peak"]
    axes.figure.legend(
        handles, labels, loc="outside lower center", ncols=3, columnspacing=1.2, handlelength=1.6
    )
    axes.set(
        yticks=range(len(names)),
        yticklabels=[name.replace(", ", ",\n") for name in names],
        xlabel="memory (GB)",
    )
    axes.set(xlim=(0, 245), ylim=(len(names) - 0.5, -0.6))
    axes.grid(visible=False)


def before_activations(optimizer: str, precision: str, billion_parameters: float) -> Drawing:
    """Return the bar of one model, before activations, against the cards. Local."""
    terms = training_bytes(round(billion_parameters * 1e9), optimizer, precision)
    parts = ("parameters", "copies", "gradients", "optimizer_state")
    return against_cards({f"{terms.total / 1e9:.0f} GB": terms}, terms=parts)
