"""Figures of the page "Your own script": how far right and wrong scripts lie from the reference."""

from collections.abc import Mapping, Sequence

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

WIDTH = 5.2
RIGHT, FAULTY = 2, 1  # places in the series' colours: green and red
#: Errors of exactly 0 are drawn here; float64 has no smaller ones near 1.
SMALLEST = 1e-17


@styled()
def errors(
    right: Mapping[str, Sequence[float]], faulty: Mapping[str, Sequence[float]], allowed: float
) -> Drawing:
    """Return each script's largest errors as points, a row a script, and the allowed one. Local.

    Errors are parts of a norm, by script: those of the right script, one a variant, and those of
    its faults, one each. ValueError: the scripts of both are not the same.
    """
    if list(right) != list(faulty):
        raise ValueError(f"found {list(right)} and {list(faulty)}, expected the same scripts")
    figure = drawing(WIDTH, 0.9 + 0.45 * len(right), f"Errors of {len(right)} scripts")
    (axes,) = figure.axes
    for row, script in enumerate(right):
        _points(axes, row, right[script], RIGHT)
        _points(axes, row, faulty[script], FAULTY)
    axes.axvline(allowed, color=PREDICTION, linestyle="--")
    label_line(axes, allowed, -0.62, "allowed", PREDICTION)
    label_line(axes, 1e-16, -0.62, "right", series_colour(RIGHT))
    label_line(axes, 1e-2, -0.62, "with a fault", series_colour(FAULTY))
    axes.set_xscale("log")
    axes.set_yticks(range(len(right)), [name.replace("_", " ") for name in right])
    axes.set(xlim=(SMALLEST / 3, 100), ylim=(len(right) - 0.5, -0.9))
    axes.set_xlabel("largest error, as a part of the norm")
    axes.grid(visible=False, axis="y")
    return figure


def _points(axes, row: int, found: Sequence[float], series: int) -> None:
    axes.plot(
        [max(SMALLEST, error) for error in found],
        [row] * len(found),
        series_marker(series),
        color=series_colour(series),
        markeredgecolor=INK,
        markeredgewidth=0.6,
        alpha=0.8,
    )
