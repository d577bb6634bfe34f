"""Which reducers are on a parameter: a module may be wrapped again while the old wrapper lives."""

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from helpers.data_parallel.reducer import Reducer

_owners: dict[int, "weakref.WeakSet[Reducer]"] = {}


def claim(parameters: Iterable[nn.Parameter], reducer: "Reducer") -> set["Reducer"]:
    """Note that `reducer` has hooks on these parameters; return the others that have some. Local.

    By id: the reducer keeps its parameters alive until `release`.
    """
    others: set[Reducer] = set()
    for parameter in parameters:
        owners = _owners.setdefault(id(parameter), weakref.WeakSet())
        others.update(owners)
        owners.add(reducer)
    return others


def release(parameters: Iterable[nn.Parameter], reducer: "Reducer") -> None:
    """Note that `reducer` has none any more. Local."""
    for parameter in parameters:
        owners = _owners.get(id(parameter))
        if owners is not None:
            owners.discard(reducer)
            if not owners:
                del _owners[id(parameter)]
