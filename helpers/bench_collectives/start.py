"""The ranks: those that torchrun has started, or our own; and how far they are."""

import os

from helpers.process_group import TORCHRUN_VARIABLES
from helpers.progress import bar, run_function_with_bar

from .arguments import Settings
from .measure import World, measure_world, num_rounds
from .table import ranks_words


def is_under_torchrun() -> bool:
    """Whether this process is one of torchrun's ranks. Local."""
    return any(os.environ.get(name) for name in TORCHRUN_VARIABLES)


def measure_here(settings: Settings) -> World:
    """Measure on torchrun's ranks; rank 0 shows a bar. Every rank must call this."""
    is_first = os.environ.get("RANK") == "0"
    words = ranks_words(int(os.environ["WORLD_SIZE"]))
    with bar(num_rounds(settings), words, is_first) as shown:
        return measure_world(settings, shown.update)


def measure_on(world_size: int, settings: Settings) -> World:
    """Start so many ranks, measure on them, and show a bar meanwhile. Local."""
    worlds = run_function_with_bar(
        measure_world,
        settings,
        nproc_per_node=world_size,
        total=num_rounds(settings),
        what=ranks_words(world_size),
    )
    return worlds[0]
