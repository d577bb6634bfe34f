"""Two barriers of a one-shot all-reduce, in time: what each is for, by what goes wrong without."""

from collections.abc import Sequence

from helpers.figures.style import INK, Drawing, drawing, rank_colour, styled

WIDTH = 5.4
WRONG = "#b3001b"
BARRIERS = ("both barriers", "no first barrier", "no second barrier")
#: Units of time: when each rank arrives, and how long it reads. Rank 1 is late, and slow.
ARRIVES, READS = (0, 2), (2, 4)
LAST = 8

#: (start, end, what it does), of one rank.
Lane = list[tuple[float, float, str]]


def barrier_lanes(barriers: str) -> list[Lane]:
    """Return what two ranks do when: write, wait, read, wait, and write the next numbers. Local."""
    written = [arrives + 1 for arrives in ARRIVES]
    begins = written if barriers == BARRIERS[1] else [max(written)] * 2
    read = [begin + reads for begin, reads in zip(begins, READS, strict=True)]
    leaves = read if barriers == BARRIERS[2] else [max(read)] * 2
    return [
        [
            (ARRIVES[rank], written[rank], "write"),
            (written[rank], begins[rank], "wait"),
            (begins[rank], read[rank], "read"),
            (read[rank], leaves[rank], "wait"),
            (leaves[rank], leaves[rank] + 1, "write next"),
        ]
        for rank in (0, 1)
    ]


def races(lanes: Sequence[Lane]) -> list[tuple[int, float, str]]:
    """Return (rank, time, what it reads that it must not) for each rank that is betrayed. Local."""
    found = []
    for rank, other in ((0, 1), (1, 0)):
        begin, end, _ = lanes[rank][2]
        if begin < lanes[other][0][1]:
            found.append((rank, begin, f"rank {other}'s old numbers"))
        if end > lanes[other][4][0]:
            found.append((rank, lanes[other][4][0], f"rank {other}'s next numbers"))
    return found


@styled()
def barrier(time: int, barriers: str) -> Drawing:
    """Return two ranks' lanes up to a time, and in red what is read too early or late. Local."""
    lanes = barrier_lanes(barriers)
    seen = [race for race in races(lanes) if race[1] < time]
    verdict = "; ".join(f"rank {rank} reads {what}" for rank, _, what in seen) or "all is well"
    figure = drawing(WIDTH, 2.1, f"{barriers}, up to time {time}: {verdict}")
    (axes,) = figure.axes
    for rank, lane in enumerate(lanes):
        for begin, end, what in lane:
            _part(axes, rank, begin, min(end, time), what)
    for rank, begin, _ in seen:
        axes.plot([begin] * 2, [rank - 0.4, rank + 0.4], color=WRONG, linewidth=4)
    axes.set_title(verdict, color=WRONG if seen else INK, loc="left")
    axes.set_yticks([0, 1], ["rank 0", "rank 1"])
    axes.set(xlim=(0, LAST), ylim=(1.5, -0.5), xlabel="time")
    axes.grid(visible=False, axis="y")
    return figure


def _part(axes, rank: int, begin: float, end: float, what: str) -> None:
    if end <= begin:
        return
    colour = rank_colour(rank)
    fills = what.startswith("write")
    axes.barh(
        rank,
        end - begin,
        0.5,
        left=begin,
        color=colour if fills else "none",
        edgecolor=colour,
        linestyle=":" if what == "wait" else "-",
    )
    ink = "white" if fills else INK
    middle = (begin + end) / 2 - (0.4 if what == "read" else 0)  # beside the mark of a race
    axes.annotate(
        what.replace(" ", "\n"), (middle, rank), ha="center", va="center", color=ink, fontsize=8.5
    )
