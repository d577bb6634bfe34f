"""What came of each way to split a training, and the plan that says which are tried."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from helpers.compare.notes import Difference
from helpers.compare.variants import Found, Variant


class Outcome(NamedTuple):
    """What came of a variant: `is_same` is None where it was not tried.

    `error` is the largest part of a norm that was found, `allowed` what may be, by kind of number;
    `difference`, its rank and its cause are empty where all is the same.
    """

    variant: Variant
    is_same: bool | None
    error: float
    allowed: Mapping[str, float]
    rank: int | None = None
    difference: Difference | None = None
    cause: str = ""

    @property
    def when(self) -> str:
        if self.difference.step is not None:
            return f"step {self.difference.step}"
        return "after loading" if self.variant.resumed_from else "before the first step"

    @property
    def told(self) -> str:
        """One sentence: which variant, when, on which rank, what and by how much."""
        return (
            f"{self.variant} differ from one process on the whole batch: {self.when}, "
            f"rank {self.rank}: {self.difference.message}"
        )

    def __str__(self) -> str:
        return f"{self.told}\nlikely cause: {self.cause}"


class Plan(NamedTuple):
    """Which variants are tried, against what tolerance (None: the dtype's own), how long."""

    micro_batches: Sequence[int]
    ranks: Sequence[int]
    resume: bool = True
    tolerance: float | None = None
    timeout_s: float = 60.0

    @property
    def num_parts(self) -> int:
        """The most parts that a batch is split into."""
        return max(self.micro_batches) * max(self.ranks)

    def variants(self, index: int, steps: int) -> list[Variant]:
        """Return those of the launch with this index: splits, a stop, another number of ranks."""
        num_ranks, most = self.ranks[index], self.micro_batches[-1]
        found = [Variant(num_ranks, number) for number in self.micro_batches]
        if self.resume and steps > 1:
            earlier = [self.ranks[index - 1]] if index else []
            found += [Variant(num_ranks, most, each) for each in (num_ranks, *earlier)]
        return found


def outcome_of(variant: Variant, by_rank: Sequence[Found], allowed: Mapping[str, float]) -> Outcome:
    """Return the outcome by what each rank found: judged by time, then by rank. Local."""
    error = max(found.error for found in by_rank)
    differing = [(found, rank) for rank, found in enumerate(by_rank) if found.difference]
    if not differing:
        return Outcome(variant, all(found.is_tried for found in by_rank) or None, error, allowed)
    found, rank = min(differing, key=lambda each: (each[0].difference.index, each[1]))
    cause = found.cause + _apart(found.difference, by_rank)
    return Outcome(variant, False, error, allowed, rank, found.difference, cause)


def _apart(first: Difference, by_rank: Sequence[Found]) -> str:
    """Say which ranks still agree where others do not."""
    places = [found.difference.index if found.difference else None for found in by_rank]
    agree = [rank for rank, index in enumerate(places) if index is None or index > first.index]
    if not agree or first.kind not in ("parameter", "buffer"):
        return ""
    who = f"ranks {', '.join(map(str, agree))} agree" if agree[1:] else f"rank {agree[0]} agrees"
    return f"; {who} here: the replicas are apart"
