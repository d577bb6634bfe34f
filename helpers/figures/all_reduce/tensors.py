"""Algorithms that send whole tensors, step by step: tree, doubling, gather and broadcast."""

from matplotlib.patches import FancyArrowPatch, Rectangle

from helpers.figures.all_reduce.schedule import Transfer, holdings, schedule
from helpers.figures.style import INK, PAPER, Drawing, drawing, styled

_WIDTH, _HEIGHT = 4.8, 2.1
_RANK, _SENT = -0.35, -0.92  # heights of the lines of text below the boxes
_PARTIAL, _WHOLE, _OWN = "#cfe0ee", "#0b5d8f", "#f6f6f6"


@styled()
def tensor_step(algorithm: str, world_size: int, step: int) -> Drawing:
    """Return the ranks after a step, an arc a message, with what each has sent so far. Local.

    algorithm: "tree", "doubling" or "gather_broadcast". A box says whose numbers the rank's sum
    contains; a thick frame, that this step changed it. Steps past the last show the end.
    ValueError: an algorithm that sends chunks, a step below 0.
    """
    steps, num_chunks = schedule(algorithm, world_size)
    if (num_chunks > 1) or step < 0:
        raise ValueError(f"tensor_step: found {algorithm!r}, step {step}, expected whole tensors")
    at = min(step, len(steps))
    sent = steps[at - 1] if 0 < step <= len(steps) else []
    words = _words(step, len(steps), sent)
    shows = f"{algorithm.replace('_', '-')}, {world_size} ranks, {words}"
    figure = drawing(_WIDTH, _HEIGHT, shows, rows=0)
    figure.set_layout_engine("none")  # with fixed places a frame takes half the time
    axes = figure.add_axes((0.12, 0.13, 0.87, 0.86))
    changed = {transfer.receiver for transfer in sent}
    for rank, (ranks,) in enumerate(holdings(algorithm, world_size)[at]):
        messages = sum(each.sender == rank for step in steps[:at] for each in step)
        _rank(axes, rank, ranks, world_size, rank in changed, messages)
    pairs = {(each.sender, each.receiver) for each in sent}
    for sender, receiver in sorted(pairs):
        is_exchange = (receiver, sender) in pairs
        if not is_exchange or sender < receiver:
            _arc(axes, sender, receiver, is_exchange, sent[0].adds)
    for y, name in ((_RANK, "rank"), (0.3, "sum of"), (_SENT, "sent")):
        axes.text(-0.6, y, name, size=10, va="center", ha="right")
    axes.set_xlabel(words)
    axes.set(xlim=(-0.6, 7.5), ylim=(-1.15, 2.9), xticks=[], yticks=[])
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    return figure


def _words(step: int, last: int, sent: list[Transfer]) -> str:
    if not step:
        return f"start, {last} steps to come"
    if step > last:
        return f"finished since step {last}"
    what = "added to what is there" if sent[0].adds else "copied, the sum comes back"
    return f"step {step} of {last}: {what}"


def _rank(axes, rank, ranks: frozenset[int], world_size: int, is_new: bool, messages: int) -> None:
    is_whole = len(ranks) == world_size
    fill = _WHOLE if is_whole else _OWN if len(ranks) == 1 else _PARTIAL
    width = 2.4 if is_new else 0.7
    axes.add_artist(Rectangle((rank - 0.46, 0), 0.92, 0.6, fc=fill, ec=INK, lw=width))
    about = {"ha": "center", "va": "center"}
    how = {"color": PAPER, "weight": "bold"} if is_whole else {}
    text = "all" if is_whole else _range(ranks)
    size = 8 if "\n" in text else 10
    axes.text(rank, 0.3, text, size=size, linespacing=0.95, **about, **how)
    axes.text(rank, _RANK, str(rank), size=10, **about)
    axes.text(rank, _SENT, str(messages), size=10, **about)


def _range(ranks: frozenset[int]) -> str:
    """0–3 where they follow each other; what does not, on a line of its own."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and parts[-1][-1] == rank - 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    return "\n".join(f"{part[0]}–{part[-1]}" if part[1:] else str(part[0]) for part in parts)


def _arc(axes, sender: int, receiver: int, is_exchange: bool, adds: bool) -> None:
    """An arc over the ranks, with two heads for an exchange; broken where it copies."""
    arc = FancyArrowPatch(
        (sender, 0.68),
        (receiver, 0.68),
        connectionstyle=f"arc3,rad={-0.5 if sender < receiver else 0.5}",
        arrowstyle="<|-|>" if is_exchange else "-|>",
        mutation_scale=11,
        color=INK,
        lw=1.2,
        linestyle="-" if adds else (0, (4, 2)),
        shrinkA=0,
        shrinkB=0,
    )
    axes.add_artist(arc)
