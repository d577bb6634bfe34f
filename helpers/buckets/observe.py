"""When each gradient is ready, measured."""

import time
from collections.abc import Callable, Iterable

from torch import Tensor


def observe_ready_s(
    parameters: Iterable[Tensor], backward: Callable[[], object]
) -> tuple[list[Tensor], list[float]]:
    """Return parameters in the order in which backward() made them ready, and the seconds. Local.

    Runs `backward()` once, on this process alone: a plain model, not a wrapped one. Seconds count
    from its start to the moment at which the gradient is in `.grad`; those that it never reaches
    come last, at its end. Frozen parameters are left out. On a GPU the times are those at which
    the work was *issued*: let `backward` synchronise after each layer, or take them from events.

    Times differ between ranks and runs. Plans must not: let one rank measure, and give the result
    to all. Chapter 10.
    """
    parameters = [p for p in parameters if p.requires_grad]
    found: dict[Tensor, float] = {}

    def note(parameter: Tensor) -> None:
        found.pop(parameter, None)  # a gradient that comes in several parts: the last one counts
        found[parameter] = time.monotonic() - start_s

    handles = [p.register_post_accumulate_grad_hook(note) for p in parameters]
    try:
        start_s = time.monotonic()
        backward()
        end_s = time.monotonic() - start_s
    finally:
        for handle in handles:
            handle.remove()
    for parameter in parameters:
        found.setdefault(parameter, end_s)
    return list(found), list(found.values())
