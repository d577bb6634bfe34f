"""The runs as tables for people."""

from collections.abc import Sequence

from .rows import Bound, Row, Verdict, ratio, verdicts

_COLUMNS = ("", "median", "(least - most)", "ratio to", "ratio", "bound", "")


def table(rows: Sequence[Row]) -> str:
    """Return the rows of one run as text, a block for each setting. Local."""
    blocks = []
    for setting in dict.fromkeys(row.setting for row in rows):
        block = [row for row in rows if row.setting == setting]
        blocks.append(_block(setting, block))
    return "\n\n".join(blocks)


def summary(runs: Sequence[Sequence[Row]]) -> str:
    """Return every bound with the ratios of all runs, and how many runs have met it. Local."""
    lines = [("", "to", *(f"run {index + 1}" for index in range(len(runs))), "bound", "")]
    for same in zip(*map(verdicts, runs), strict=True):
        ratios = [f"{verdict.ratio:.3f}" for verdict in same]
        first = same[0]
        words = f"{first.setting}: {first.name}", first.to
        lines.append((*words, *ratios, f"{first.at_most:.2f}", _words(same)))
    return _aligned(lines, {0, 1, len(lines[0]) - 1})


def _words(same: Sequence[Verdict]) -> str:
    num_met = sum(verdict.is_met for verdict in same)
    return "met" if num_met == len(same) else f"MISSED in {len(same) - num_met} of {len(same)}"


def _block(setting: str, rows: Sequence[Row]) -> str:
    lines = [_COLUMNS]
    for row in rows:
        low, high = min(row.samples), max(row.samples)
        spread = f"({_number(low)} - {_number(high)})" if low < high else ""
        cells = row.name, f"{_number(row.value)} {row.unit}".rstrip(), spread
        first, *more = _ratios(rows, row)
        lines += [(*cells, *first), *(("", "", "", *cells) for cells in more)]
    return f"{setting}\n{_aligned(lines, {0, 3, 6})}"


def _ratios(rows: Sequence[Row], row: Row) -> list[tuple[str, ...]]:
    """The cells of each ratio of a row: to what it is compared, else to the first one."""
    if row.name == rows[0].name or row.unit != rows[0].unit:
        return [("", "", "", "")]
    return [
        (bound.to, f"{ratio(rows, row, bound.to):.3f}", *_held(ratio(rows, row, bound.to), bound))
        for bound in row.bounds or (Bound(rows[0].name, None),)
    ]


def _held(found: float, bound: Bound) -> tuple[str, str]:
    if bound.at_most is None:
        return "", ""
    return f"{bound.at_most:.2f}", "met" if found <= bound.at_most else "MISSED"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def _aligned(lines: Sequence[tuple[str, ...]], left: set[int]) -> str:
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if index in left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ).rstrip()
        for cells in lines
    )
