"""A bar that shows how far a function on several ranks is."""

import mmap
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

from helpers import host_memory
from helpers.launch import run_function

#: Longer than any table takes; a rank that waits for another ends after its own timeout.
LAUNCH_TIMEOUT_S = 24 * 3600.0


def run_function_with_bar(
    function: Callable[..., Any], *arguments: Any, nproc_per_node: int, total: int, what: str
) -> list[Any]:
    """Call `function(*arguments, tick)` on every rank, with a bar; return the results by rank.

    Local. Each `tick()` on rank 0 moves the bar by one of `total`; on the other ranks it does
    nothing. `what` stands before the bar. Raises as helpers.launch.run_function, which it
    calls without a time limit of use: the function opens its own process group, with one.
    """
    counter = host_memory.share(8)
    try:
        with bar(total, what) as shown, _following(counter.buffer, shown):
            return run_function(
                _call,
                function,
                arguments,
                counter.address,
                nproc_per_node=nproc_per_node,
                timeout_s=LAUNCH_TIMEOUT_S,
            )
    finally:
        counter.close()


@contextmanager
def bar(total: int, what: str, is_shown: bool = True) -> Iterator[tqdm]:
    """Show a bar of `total` rounds on stderr while the context is open. Local."""
    with tqdm(
        total=total, desc=what, unit="round", file=sys.stderr, disable=not is_shown, leave=False
    ) as shown:
        yield shown


def _call(function: Callable[..., Any], arguments: tuple, address: str) -> Any:
    """On a rank: rank 0 counts its rounds where the process that started it can see them."""
    if os.environ["RANK"] != "0":
        return function(*arguments, lambda: None)
    counter = host_memory.attach(address, 8)

    def tick() -> None:
        count = int.from_bytes(counter.buffer[:8], "little") + 1
        counter.buffer[:8] = count.to_bytes(8, "little")

    return function(*arguments, tick)


@contextmanager
def _following(count: mmap.mmap, shown: tqdm) -> Iterator[None]:
    """Move the bar, in a thread, to where the count is."""
    is_over = threading.Event()

    def catch_up() -> None:
        if step := int.from_bytes(count[:8], "little") - shown.n:
            shown.update(step)

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
        shown.refresh()
