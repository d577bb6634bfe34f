"""Launches of the gate, and a second look at what differs before it is called so."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from helpers.compare.noise import EXACT, exact
from helpers.compare.outcome import Outcome, Plan, outcome_of
from helpers.compare.returned import check_losses
from helpers.compare.setup import Training
from helpers.compare.variants import Variant, against
from helpers.compare.yardstick import judged_alone, rounding_alone
from helpers.launch import RankFailed


class Launches:
    """The reference, trained once constructed, and every variant beside it. Local.

    Two things may differ that are no fault, and a red is looked at again for both: rounding that
    the optimizer or a narrower dtype makes large, which is measured then, and what an earlier
    training left behind in the process, so that a variant is tried in processes of its own.
    """

    def __init__(self, training: Training, plan: Plan):
        self.training, self.plan = training, plan
        # A world of its own: code that asks for its rank must not act as several ranks do.
        (self.judged,) = self._run(judged_alone, 1, plan)
        check_losses(self.judged.expected)
        self.checkpoints: dict[int, bytes | None] = {}  # by the number of ranks
        self.is_measured = plan.tolerance is not None or training.dtype != torch.float64

    def outcomes(self, index: int) -> list[Outcome]:
        """Return those of one number of ranks. Raises RankFailed where a rank fails."""
        variants = self.plan.variants(index, len(self.training.batches))
        found = self._try(variants)
        if any(each.is_same is False for each in found) and self._is_rounding_wider():
            found = self._try(variants)
        return self._apart(variants, found)

    def _run(self, function: Callable[..., Any], num_ranks: int, *arguments: Any) -> list[Any]:
        from helpers.launch import run_function  # looked up late, for tests that launch together

        return run_function(
            function,
            *(self.training, *arguments),
            nproc_per_node=num_ranks,
            timeout_s=self.plan.timeout_s,
        )

    def _try(self, variants: Sequence[Variant]) -> list[Outcome]:
        num_ranks = variants[0].num_ranks
        results = self._run(
            against,
            num_ranks,
            self.judged,
            variants,
            self.checkpoints if self.plan.resume else None,
        )
        self.checkpoints[num_ranks] = results[0][1]
        by_variant = zip(*(found for found, _ in results), strict=True)
        return [
            outcome_of(variant, by_rank, self.judged.allowed)
            for variant, by_rank in zip(variants, by_variant, strict=True)
        ]

    def _is_rounding_wider(self) -> bool:
        """Measure rounding, once, and return whether more than 1e-12 is to be allowed."""
        if self.is_measured:
            return False
        self.is_measured = True
        try:
            (allowed,) = self._run(rounding_alone, 1, self.plan.num_parts)
        except RankFailed:  # the samples may not change places: then 1e-12 it is
            return False
        self.judged = self.judged._replace(allowed=allowed)
        return allowed != exact(EXACT)

    def _apart(self, variants: list[Variant], found: list[Outcome]) -> list[Outcome]:
        """Try again, by itself, each that differs, until one does so for good."""
        for index, variant in enumerate(variants[1:], start=1):
            is_open = found[index].is_same is None and self.checkpoints[variant.num_ranks]
            if found[index].is_same is False or is_open:
                found[index] = self._try([variant])[0]
                if found[index].is_same is False:
                    break
        return found
