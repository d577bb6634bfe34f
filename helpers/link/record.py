"""What this process's operations on the emulated link took, beside what they should have."""

from collections import deque
from dataclasses import dataclass

import torch.distributed as dist

#: Done more than this share of its price after it was due, an operation counts as late.
TOLERANCE = 0.05
MAX_KEPT = 100_000


@dataclass(frozen=True)
class Completion:
    """One operation: when this rank posted it, it could start, was due, and was done here.

    It can start when all its ends have posted it and its ports are free. Times are seconds of
    time.monotonic(), which all processes of a host share.
    """

    name: str
    size_bytes: int
    posted_s: float
    ready_s: float
    due_s: float
    done_s: float
    group_name: str

    @property
    def is_late(self) -> bool:
        price_s = self.due_s - self.ready_s
        return price_s > 0 and self.done_s - self.due_s > TOLERANCE * price_s


_kept: deque[Completion] = deque(maxlen=MAX_KEPT)


def keep(completion: Completion) -> None:
    _kept.append(completion)


def clear() -> None:
    _kept.clear()


def completions(group: dist.ProcessGroup | None = None) -> list[Completion]:
    """Return this process's completed operations since the link was opened, oldest first. Local.

    `group`: only those of this group; None: of all. They stay until the next link is opened;
    the latest 100,000 are kept.
    """
    return [c for c in list(_kept) if group is None or c.group_name == group.group_name]


def late(group: dist.ProcessGroup | None = None) -> int:
    """Return how many of them were done over 5 % later than due. Local.

    Then the real transfer, or this machine, is too slow for the link: take `link.slowed(...)`.
    """
    return sum(completion.is_late for completion in completions(group))
