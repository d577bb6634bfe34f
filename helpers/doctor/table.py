"""The rows as text for people."""

from collections.abc import Sequence

from helpers.doctor.row import BAD, NOTE, Row


def table(rows: Sequence[Row]) -> str:
    """Return one line a row, with its advice below, and a verdict at the end. Local."""
    width = max(len(row.subject) for row in rows)
    lines = []
    for row in rows:
        lines.append(f"{row.verdict:4}  {row.subject:<{width}}  {row.found}")
        if row.advice:
            lines.append(f"{'':4}  {'':<{width}}  -> {row.advice}")
    counts = {verdict: sum(row.verdict == verdict for row in rows) for verdict in (BAD, NOTE)}
    verdict = f"{counts[BAD]} bad, {counts[NOTE]} to note, of {len(rows)}"
    return "\n".join([*lines, "", verdict])
