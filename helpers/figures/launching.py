"""What torchrun starts: agents, ranks and the store through which they find each other."""

from matplotlib.patches import Circle, FancyBboxPatch

from helpers.figures.style import GRID, INK, PAPER, Drawing, drawing, rank_colour, styled

_WIDTH = 5.6  # inches, as are all lengths here
_HOST_HEIGHT, _STORE_HEIGHT = 1.42, 0.6
_LEFT, _TRUNK = 1.5, _WIDTH - 0.12  # the first rank; the line that leads to the store
_RADIUS, _LABEL = 0.2, 0.32  # a rank's disc; its local rank, below its middle
_DASHES = (0, (3, 2))
_UNUSED = "#6b6b6b"  # grey that is still read on white


@styled()
def processes(hosts: int, processes_per_host: int, slots: int | None = None) -> Drawing:
    """Hosts x processes: who starts whom, each rank's number and local rank, and the store. Local.

    slots: room for so many hosts, so that drawings of fewer keep one height; hosts if None.
    ValueError: no host, more hosts than slots, or not 1 to 8 processes on each.
    """
    slots = hosts if slots is None else slots
    if not (1 <= hosts <= slots and 1 <= processes_per_host <= 8):
        raise ValueError(
            f"processes: found {hosts} hosts of {processes_per_host} in {slots} slots, "
            "expected 1 host or more, at most as many as slots, with 1 to 8 processes each"
        )
    height = _STORE_HEIGHT + slots * _HOST_HEIGHT
    world_size = hosts * processes_per_host
    figure = drawing(
        _WIDTH,
        height,
        f"hosts: {hosts}, processes on each: {processes_per_host}, ranks 0 to {world_size - 1}, "
        "each host's agent starts its ranks; all of them read and write one store on host 0",
    )
    (axes,) = figure.axes
    axes.set(xlim=(0, _WIDTH), ylim=(0, height), aspect="equal")
    axes.set_axis_off()
    _box(axes, 0.05, height - 0.5, _WIDTH - 0.1, 0.42)
    axes.text(
        _WIDTH / 2,
        height - 0.29,
        "store, kept by host 0's agent at MASTER_ADDR:MASTER_PORT",
        ha="center",
        va="center",
        size=9,
    )
    for host in range(hosts):
        _host(axes, host, processes_per_host, height - _STORE_HEIGHT - host * _HOST_HEIGHT)
    for slot in range(hosts, slots):  # room that is left looks left, not lost
        top = height - _STORE_HEIGHT - slot * _HOST_HEIGHT
        _box(axes, 0.05, top - 1.34, _WIDTH - 0.3, 1.32)
        axes.text(0.15, top - 0.16, f"host {slot}: not used", size=9, color=_UNUSED, va="center")
    _trunk(axes, height, hosts)
    return figure


def _host(axes, host: int, processes_per_host: int, top: float) -> None:
    """One host: its agent, and its ranks between the line to the store and the agent's line."""
    _box(axes, 0.05, top - 1.34, _WIDTH - 0.3, 1.32, facecolor="#f4f4f4")
    axes.text(0.15, top - 0.16, f"host {host}", size=9, weight="bold", va="center")
    middle, above, below = top - 0.54, top - 0.22, top - 1.14
    for name, y in (("rank", middle), ("local rank", middle - _LABEL)):
        axes.text(1.12, y, name, size=9, ha="right", va="center")
    _box(axes, 0.15, below - 0.13, 0.97, 0.26)
    axes.text(0.635, below, "agent", size=9, ha="center", va="center")
    step = (_WIDTH - 0.55 - _LEFT) / 7
    places = [_LEFT + step * local_rank for local_rank in range(processes_per_host)]
    axes.plot([places[0], _TRUNK], [above, above], color=INK, lw=0.9, ls=_DASHES)
    axes.plot([1.12, places[-1]], [below, below], color=INK, lw=1.1)
    for local_rank, x in enumerate(places):
        rank = host * processes_per_host + local_rank
        _rank(axes, rank, local_rank, x, (above, middle, below))


def _rank(axes, rank: int, local_rank: int, x: float, heights: tuple[float, ...]) -> None:
    above, middle, below = heights
    axes.plot([x, x], [middle + _RADIUS, above], color=INK, lw=0.9, ls=_DASHES)
    axes.add_patch(Circle((x, middle), _RADIUS, color=rank_colour(rank)))
    about = {"ha": "center", "va": "center"}
    axes.text(x, middle, str(rank), color=PAPER, weight="bold", size=10, **about)
    axes.text(x, middle - _LABEL, str(local_rank), size=9, **about)
    arrow = {"arrowstyle": "->", "color": INK, "lw": 1.1, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", (x, middle - _LABEL - 0.1), (x, below), arrowprops=arrow)


def _trunk(axes, height: float, hosts: int) -> None:
    """The dashed line on the right that brings every host's ranks to the store."""
    lowest = height - _STORE_HEIGHT - (hosts - 1) * _HOST_HEIGHT - 0.22
    axes.plot([_TRUNK, _TRUNK], [lowest, height - 0.5], color=INK, lw=0.9, ls=_DASHES)


def _box(axes, x, y, width, height, facecolor=PAPER) -> None:
    style = "round,pad=0,rounding_size=0.06"
    patch = FancyBboxPatch((x, y), width, height, boxstyle=style, fc=facecolor, ec=GRID, lw=1)
    axes.add_patch(patch)
