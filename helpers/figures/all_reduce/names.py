"""Names of lines at their right ends, apart where the ends are close."""

import math
from collections.abc import Sequence
from statistics import fmean

from helpers.cost_model import ALGORITHMS
from helpers.figures.style import label_line, series_colour


def names_at_ends(axes, x: float, ends: Sequence[tuple[float, str]], room: float) -> None:
    """Write each algorithm's name beside the end of its line; a thin line leads there. Local.

    ends: (height, algorithm), ascending, on logarithmic axes. room: between ends and names, as
    a ratio.
    """
    low, high = axes.get_ylim()
    gap = 0.062 * math.log(high / low)  # of two names
    heights = apart([math.log(height) for height, _ in ends], gap)
    for (end, algorithm), height in zip(ends, map(math.exp, heights), strict=True):
        colour = series_colour(ALGORITHMS.index(algorithm))
        axes.plot([x, x * room], [end, height], color=colour, linewidth=0.7)
        name = algorithm.replace("_", "-")
        label_line(axes, x * room, height, name, colour, size=9, xytext=(2, 0))


def apart(places: Sequence[float], gap: float) -> list[float]:
    """Return ascending places, moved as little as needed to stand `gap` apart. Local.

    Crowded places keep their mean: least squares under the condition, by pooling neighbours.
    """
    crowds: list[list[float]] = []
    for index, place in enumerate(places):
        crowds.append([place - index * gap])
        while len(crowds) > 1 and fmean(crowds[-2]) > fmean(crowds[-1]):
            crowds[-2:] = [crowds[-2] + crowds[-1]]
    means = [fmean(crowd) for crowd in crowds for _ in crowd]
    return [mean + index * gap for index, mean in enumerate(means)]
