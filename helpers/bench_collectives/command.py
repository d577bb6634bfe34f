"""The command: measure, print the table, write what was asked for."""

import os
import sys

from helpers.launch import RankFailed

from .arguments import Command, parse
from .measure import World
from .record import write_json, write_whole
from .start import is_under_torchrun, measure_here, measure_on
from .table import legend, link_words, table


def main(words: list[str] | None = None) -> int:
    """The command; returns its exit code: 0, 1 where a rank failed, 130 where it was stopped.

    Under torchrun every rank must call this; elsewhere it is local and starts its ranks.
    Chapter 08 uses it.
    """
    command = parse(words)
    if is_under_torchrun():
        return _under_torchrun(command)
    worlds = []
    try:
        for world_size in command.worlds or (2,):
            worlds.append(measure_on(world_size, command.settings))
            print(table(worlds[-1], command.settings), end="\n\n", flush=True)
    except RankFailed as failed:
        print(failed, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; nothing was written", file=sys.stderr)
        return 130
    _finish(command, worlds)
    return 0


def _under_torchrun(command: Command) -> int:
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    if command.worlds and command.worlds != (world_size,):
        print(f"--ranks: torchrun has started {world_size} ranks, leave it out", file=sys.stderr)
        return 2
    world = measure_here(command.settings)
    if os.environ["RANK"] == "0":
        print(table(world, command.settings), end="\n\n")
        _finish(command, [world])
    return 0


def _finish(command: Command, worlds: list[World]) -> None:
    print(legend(command.settings))
    if command.json:
        write_json(command.json, worlds, command.settings)
    if command.figure:
        write_whole(command.figure, _figure(command, worlds))


def _figure(command: Command, worlds: list[World]) -> str:
    from helpers.figures import to_svg  # not needed, and slow to load, on every rank
    from helpers.figures.measured_all_reduce import seconds_by_algorithm

    series = {world.world_size: _series(world) for world in worlds}
    figure = seconds_by_algorithm(series, link_words(command.settings))
    return to_svg(figure, figure.shows) + "\n"


def _series(world: World) -> dict[str, dict[int, tuple]]:
    """As the figure takes them: algorithm -> size -> p10, median, p90, predicted."""
    series = {}
    for row in world.rows:
        point = row.quantile_s(0.1), row.median_s, row.quantile_s(0.9), row.predicted_s
        series.setdefault(row.algorithm, {})[row.size_bytes] = point
    return series
