"""The command: try every way to split a script's training, print each, then what was found."""

import sys

import torch

from helpers.compare.same_training import Outcome, Plan, same_training
from helpers.launch import RankFailed

from .arguments import Command, parse
from .record import write_json
from .script import training_of
from .table import HEAD, row, summary

SAME, DIFFERS, NOT_JUDGED = 0, 1, 2


def main(words: list[str] | None = None) -> int:
    """The command; returns its exit code: 0 all the same, 1 something differs, 2 not judged.

    130 where it was stopped. Local: it starts its ranks.
    """
    command = parse(words)
    try:
        return _judge(command)
    except (ValueError, TypeError, RankFailed) as error:
        print(f"not judged: {error}", file=sys.stderr)
        return NOT_JUDGED
    except KeyboardInterrupt:
        print("stopped; nothing was written", file=sys.stderr)
        return 130


def _judge(command: Command) -> int:
    dtype = getattr(torch, command.dtype)
    training = training_of(command.script, command.steps, dtype, command.slices)
    plan = Plan(
        command.micro_batches,
        command.ranks,
        command.resume,
        command.tolerance,
        command.timeout_s,
    )
    whose = "your train_step" if training.train_step else "the gate's own loop"
    print(f"{command.script.name}: {whose}, {command.steps} steps, {command.dtype}\n\n{HEAD}")
    outcomes: list[Outcome] = []
    for outcome in same_training(training, plan):
        outcomes.append(outcome)
        print(row(outcome), flush=True)
    print(f"\n{summary(outcomes)}")
    if command.json:
        write_json(command.json, command, outcomes)
    return DIFFERS if any(outcome.is_same is False for outcome in outcomes) else SAME
