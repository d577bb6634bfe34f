"""What was measured: samples by contender, ratios of them, and the bounds they are held to."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Bound:
    """The most that a contender's value may be, as a ratio to that of the contender `to`.

    at_most None: the two are compared, and held to nothing.
    """

    to: str
    at_most: float | None


@dataclass(frozen=True)
class Row:
    """One contender in one setting: its samples, in order of rounds, in one unit.

    `setting`: the model or the link, in words. `bounds`: what it is held to.
    """

    setting: str
    name: str
    samples: tuple[float, ...]
    unit: str
    bounds: tuple[Bound, ...] = ()

    @property
    def value(self) -> float:
        return statistics.median(self.samples)


@dataclass(frozen=True)
class Verdict:
    """A bound, and the ratio that was found."""

    setting: str
    name: str
    to: str
    ratio: float
    at_most: float

    @property
    def is_met(self) -> bool:
        return self.ratio <= self.at_most


def ratio(rows: Sequence[Row], row: Row, to: str) -> float:
    """Return this row's value over that of the contender `to` in its setting. Local.

    To three decimals, as it is printed and held to its bound: eight bytes in 48 MB are no miss.
    """
    other = next(other for other in rows if (other.setting, other.name) == (row.setting, to))
    return round(row.value / other.value, 3)


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    """Return every bound of a run, with the ratio that was found, in the rows' order. Local."""
    return [
        Verdict(row.setting, row.name, bound.to, ratio(rows, row, bound.to), bound.at_most)
        for row in rows
        for bound in row.bounds
        if bound.at_most is not None
    ]
