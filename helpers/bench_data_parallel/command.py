"""The command: measure as often as asked, print every run, then every bound."""

import importlib
import sys

from helpers.launch import RankFailed
from helpers.progress import run_function_with_bar

from .arguments import Command, parse
from .record import write_json
from .rows import Row
from .table import summary, table

NUM_RANKS = 2


def main(words: list[str] | None = None) -> int:
    """The command; returns its exit code: 0 (also for a missed bound), 1 where a rank failed.

    130 where it was stopped. Local: it starts its ranks.
    """
    command = parse(words)
    try:
        return _measure_all(command)
    except RankFailed as failed:
        print(failed, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; nothing was written", file=sys.stderr)
        return 130


def _measure_all(command: Command) -> int:
    # Each brings what the others do not need.
    measured = importlib.import_module(f".{command.what}", __package__)
    rounds = command.rounds or measured.DEFAULT_ROUNDS
    print(f"{measured.WHAT}; {NUM_RANKS} ranks, gloo on the CPU, {rounds} rounds a run\n")
    runs: list[list[Row]] = []
    for index in range(command.runs):
        what = f"run {index + 1} of {command.runs}"
        runs.append(
            run_function_with_bar(
                measured.measure,
                rounds,
                nproc_per_node=NUM_RANKS,
                total=measured.num_ticks(rounds),
                what=what,
            )[0]
        )
        print(f"{what}\n{table(runs[-1])}", end="\n\n", flush=True)
        if hasattr(measured, "remark"):
            print(f"{what}: {measured.remark(runs[-1])}", end="\n\n", flush=True)
    print(f"all runs, ratios\n{summary(runs)}")
    if command.json:
        write_json(command.json, measured.WHAT, runs, rounds)
    return 0
