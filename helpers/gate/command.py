"""The command: try every way to split a script's training, print each, then what was found."""

import sys
import traceback

import torch

from helpers.compare.outcome import Outcome, Plan
from helpers.compare.same_training import same_training
from helpers.launch import RankFailed
from helpers.stopping import write_no_more

from .arguments import Command, parse
from .failure import told
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
    except BrokenPipeError:  # nobody reads on
        write_no_more()
    except (ValueError, TypeError, OSError, RankFailed) as error:
        print(f"not judged: {told(error, command.dtype)}", file=sys.stderr)
    except KeyboardInterrupt:
        print("stopped; nothing was written", file=sys.stderr)
        return 130
    except Exception:  # Python's own exit code would be that of DIFFERS
        traceback.print_exc()
        print("not judged: the gate itself failed", file=sys.stderr)
    return NOT_JUDGED


def _judge(command: Command) -> int:
    dtype = getattr(torch, command.dtype)
    training = training_of(command.script, command.steps, dtype, command.slices, command.timeout_s)
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
    print(f"\n{summary(outcomes)}", flush=True)
    if command.json:
        _write(command, outcomes)
    return DIFFERS if any(outcome.is_same is False for outcome in outcomes) else SAME


def _write(command: Command, outcomes: list[Outcome]) -> None:
    try:
        write_json(command.json, command, outcomes)
    except OSError as error:
        raise OSError(f"{command.json} is not written: {error.strerror}") from error
