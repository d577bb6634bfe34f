"""Many gates in the launches of one: what they would launch one by one, one launch does."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from helpers import launch
from helpers.launch import run_function


class Asked(Exception):
    """A gate asks for a launch whose results are not known yet."""


def _that_knows(launches: list, gate: Callable[[], Any]) -> Any:
    """The gate, its launches answered from a list as far as it goes. Asked: not far enough."""
    known = iter(launches)

    def run_function(function, *arguments, nproc_per_node, timeout_s):
        for results in known:
            return results
        raise Asked(function, arguments, nproc_per_node)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "run_function", run_function)
        return gate()


def _one_after_the_other(calls: list) -> list:
    return [function(*arguments) for function, arguments in calls]


def gates_together(gates: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """Return what each gate returns, or the AssertionError that it raises, by name.

    A gate is called again from its start after each launch, so it must do the same each time.
    """
    launches, found = {name: [] for name in gates}, {}
    while len(found) < len(gates):
        asked = {}
        for name in gates.keys() - found.keys():
            try:
                found[name] = _that_knows(launches[name], gates[name])
            except AssertionError as error:
                found[name] = error
            except Asked as asks:
                *call, world_size = asks.args
                asked.setdefault(world_size, {})[name] = call
        for world_size, calls in asked.items():
            results = run_function(
                _one_after_the_other, list(calls.values()), nproc_per_node=world_size
            )
            for name, by_rank in zip(calls, zip(*results, strict=True), strict=True):
                launches[name].append(list(by_rank))
    return found
