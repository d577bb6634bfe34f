"""The ranks: those that torchrun has started, or our own; and how far they are."""

import mmap
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tqdm import tqdm

from helpers import host_memory
from helpers.launch import run_function
from helpers.process_group import TORCHRUN_VARIABLES

from .arguments import Settings
from .measure import World, measure_world, num_rounds
from .table import ranks_words

#: Longer than any table takes; a rank that waits for another ends after its own timeout.
LAUNCH_TIMEOUT_S = 24 * 3600.0


def is_under_torchrun() -> bool:
    """Whether this process is one of torchrun's ranks. Local."""
    return any(os.environ.get(name) for name in TORCHRUN_VARIABLES)


def measure_here(settings: Settings) -> World:
    """Measure on torchrun's ranks; rank 0 shows a bar. Every rank must call this."""
    is_first = os.environ.get("RANK") == "0"
    with _bar(num_rounds(settings), ranks_words(int(os.environ["WORLD_SIZE"])), is_first) as bar:
        return measure_world(settings, bar.update)


def measure_on(world_size: int, settings: Settings) -> World:
    """Start so many ranks, measure on them, and show a bar meanwhile. Local."""
    counter = host_memory.share(8)
    try:
        with (
            _bar(num_rounds(settings), ranks_words(world_size), True) as bar,
            _following(counter.buffer, bar),
        ):
            worlds = run_function(
                _measure_and_count,
                settings,
                counter.address,
                nproc_per_node=world_size,
                timeout_s=LAUNCH_TIMEOUT_S,
            )
        return worlds[0]
    finally:
        counter.close()


def _measure_and_count(settings: Settings, address: str) -> World:
    """On a rank: rank 0 counts its rounds where the process that started it can see them."""
    if os.environ["RANK"] != "0":
        return measure_world(settings, lambda: None)
    counter = host_memory.attach(address, 8)

    def tick() -> None:
        count = int.from_bytes(counter.buffer[:8], "little") + 1
        counter.buffer[:8] = count.to_bytes(8, "little")

    return measure_world(settings, tick)


@contextmanager
def _following(count: mmap.mmap, bar: tqdm) -> Iterator[None]:
    """Move the bar, in a thread, to where the count is."""
    is_over = threading.Event()

    def catch_up() -> None:
        if step := int.from_bytes(count[:8], "little") - bar.n:
            bar.update(step)

    def follow() -> None:
        while not is_over.wait(0.1):
            catch_up()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        catch_up()
        bar.refresh()


@contextmanager
def _bar(total: int, what: str, is_shown: bool) -> Iterator[tqdm]:
    with tqdm(
        total=total, desc=what, unit="round", file=sys.stderr, disable=not is_shown, leave=False
    ) as bar:
        yield bar
