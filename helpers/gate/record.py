"""What was found as JSON for tools."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from helpers.compare.outcome import Outcome
from helpers.whole_file import write_whole

from .arguments import Command


def write_json(path: Path, command: Command, outcomes: Sequence[Outcome]) -> None:
    """Write verdict, settings and a row for each variant, whole or not at all. Local.

    `same` of a row is null where it was not tried; numbers that are not finite are null.
    """
    record = {
        "script": command.script.name,
        "same": all(outcome.is_same is not False for outcome in outcomes),
        "dtype": command.dtype,
        "steps": command.steps,
        "slices": command.slices,
        "allowed": dict(outcomes[0].allowed),
        "torch": torch.__version__,
        "variants": [_row(outcome) for outcome in outcomes],
    }
    write_whole(path, json.dumps(record, indent=2) + "\n")


def _row(outcome: Outcome) -> dict[str, Any]:
    found = {
        "ranks": outcome.variant.num_ranks,
        "micro_batches": outcome.variant.num_micro_batches,
        "resumed_from_ranks": outcome.variant.resumed_from,
        "same": outcome.is_same,
        "error": outcome.error if math.isfinite(outcome.error) else None,
    }
    if outcome.difference is None:
        return found
    _, step, kind, names, message = outcome.difference
    return found | {
        "rank": outcome.rank,
        "step": step,
        "kind": kind,
        "tensors": list(names),
        "message": message,
        "likely_cause": outcome.cause,
    }
