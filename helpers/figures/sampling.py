"""Figures of the chapter "Sharding the data": who sees which sample, and what padding does."""

from collections.abc import Sequence

from helpers.figures.style import (
    INK,
    PREDICTION,
    Drawing,
    drawing,
    label_line,
    rank_colour,
    series_colour,
    styled,
)
from helpers.sampler import DistributedSampler


def shares(num_samples: int, world_size: int, shuffle: bool, drop_last: bool) -> list[list[int]]:
    """Return the indices of each rank in epoch 0, by rank. Local."""
    options = {"shuffle": shuffle, "drop_last": drop_last}
    samplers = (
        DistributedSampler(range(num_samples), world_size, rank, **options)
        for rank in range(world_size)
    )
    return [list(sampler) for sampler in samplers]


@styled()
def coverage(
    num_samples: int,
    world_size: int,
    shuffle: bool,
    drop_last: bool,
    slots: tuple[int, int] | None = None,
) -> Drawing:
    """Return a map of one epoch: a row a rank, a box a position, in it the sample's number. Local.

    A sample seen before is drawn hollow; what no rank sees stands in the row "nobody". slots:
    room for (ranks, positions), so that figures of an exploration have one size.
    """
    by_rank = shares(num_samples, world_size, shuffle, drop_last)
    num_positions = len(by_rank[0])
    seen = {index for share in by_rank for index in share}
    missing = [index for index in range(num_samples) if index not in seen]
    num_repeats = world_size * num_positions - len(seen)
    counts = (
        f"{world_size * num_positions} positions, {num_repeats} repeated, {len(missing)} missing"
    )
    rows, columns = slots or (world_size, max(num_positions, len(missing)))
    figure = drawing(min(5, 0.95 + 0.4 * max(columns, 7)), 0.75 + 0.4 * (rows + 1), counts)
    axes = figure.axes[0]
    seen.clear()
    for position in range(num_positions):  # the order in which all ranks go on together
        for rank, share in enumerate(by_rank):
            _box(axes, position, rank, share[position], rank_colour(rank), share[position] in seen)
            seen.add(share[position])
    for column, index in enumerate(missing):
        _box(axes, column, rows, index, INK, is_hollow=True)
    if not missing:
        axes.text(-0.35, rows, "(none)", va="center_baseline", color=PREDICTION)
    labels = [f"rank {rank}" for rank in range(world_size)]
    axes.set_yticks([*range(world_size), rows], [*labels, "nobody"])
    axes.set(xlim=(-0.6, max(columns, 7) - 0.4), ylim=(rows + 0.6, -0.6), xlabel=counts)
    axes.set_xticks([])
    _without_frame(axes)
    return figure


def _box(axes, x: float, y: float, text: object, colour: str, is_hollow: bool) -> None:
    inside, ink = ("white", colour) if is_hollow else (colour, "white")
    axes.plot([x], [y], "s", markersize=20, mfc=inside, mec=colour, mew=1.6, clip_on=False)
    axes.text(x, y, str(text), color=ink, ha="center", va="center_baseline", fontsize=10)


def _without_frame(axes) -> None:
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


@styled()
def accuracy_against_ranks(
    world_sizes: Sequence[int],
    padded: Sequence[float],
    serial: float,
    bounds: Sequence[tuple[float, float]],
) -> Drawing:
    """Return an accuracy against the number of ranks: one process as a line, padded as points.

    Local. bounds: the lowest and highest value that the repeats can give, as grey bars.
    """
    figure = drawing(5, 3.2, "Accuracy of one model against the number of ranks that evaluate it")
    axes = figure.axes[0]
    low, high = zip(*bounds, strict=True)
    first, last = world_sizes[0], world_sizes[-1]
    axes.vlines(world_sizes, low, high, color="#d0d0d0", linewidth=8)
    axes.plot([first - 0.7, last + 0.7], [serial, serial], color=PREDICTION, linewidth=1.2)
    axes.plot(world_sizes, padded, "s", color=series_colour(1))
    axes.set_xticks(world_sizes[::3])
    axes.set(xlabel="ranks", ylabel="accuracy", xlim=(first - 0.7, last + 5.5))
    label_line(axes, last + 0.7, serial, "one process", PREDICTION, xytext=(3, 0))
    below = padded[-1] < serial
    label_line(axes, last, padded[-1], "padded", series_colour(1), xytext=(9, -12 if below else 12))
    return figure


@styled()
def epoch_in_two_worlds(num_samples: int, before: int, consumed: int, after: int) -> Drawing:
    """Return an epoch's order as a strip: dealt to `before` ranks, the rest to `after`. Local.

    consumed: samples of all ranks together that were trained on before the change. A box's colour
    and number are its rank; the upper strip is the epoch without a change.
    """
    shows = f"{consumed} samples on {before} ranks, then {num_samples - consumed} on {after}"
    figure = drawing(5, 1.9, shows)
    axes = figure.axes[0]
    for position in range(num_samples):
        is_after = position >= consumed
        changed = (position - consumed) % after if is_after else position % before
        for row, rank in enumerate((position % before, changed)):
            colour = rank_colour(rank)
            axes.plot([position], [row], "s", markersize=11, mfc=colour, mec=colour)
            axes.text(
                position, row, str(rank), color="white", ha="center", va="center_baseline",
                fontsize=8.5,
            )  # fmt: skip
    axes.plot([consumed - 0.5] * 2, [-0.5, 1.5], color=INK, linewidth=2)
    axes.set_yticks([0, 1], [f"{before} ranks", f"then {after}"])
    axes.set_xticks(range(0, num_samples, 4))
    axes.set(xlim=(-0.6, num_samples - 0.4), ylim=(1.6, -0.6))
    axes.set_xlabel("place in the order of the epoch; in a box, the rank")
    _without_frame(axes)
    return figure
