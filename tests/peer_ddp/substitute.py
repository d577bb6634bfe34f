"""Put a class in the place of torch's DistributedDataParallel, where torch's tests look for it."""

import importlib
import inspect
import sys
from types import ModuleType
from typing import Any

from torch import nn
from torch.nn import parallel
from torch.nn.parallel import distributed

STOCK = distributed.DistributedDataParallel


class ReducerAnswers:
    """What two tests ask of torch's C++ reducer, answered from the state of a class in Python.

    The class has `_used_map` (int32, an entry a parameter: on how many ranks it was used) and
    `_maybe_rebuild()`.
    """

    def __init__(self, model: nn.Module):
        self._model = model

    def _get_local_used_map(self) -> Any:
        return self._model._used_map

    def _rebuild_buckets(self) -> Any:
        return self._model._maybe_rebuild()


def load(path: str | None) -> type:
    """Return the class "module:Name"; torch's own for None."""
    if path is None:
        return STOCK
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def install(given: type, tests: ModuleType) -> None:
    """Have torch and its module of tests use the class, which ignores the devices that it is given.

    This process only. The class keeps its name and module, so that it pickles.
    """
    names = list(inspect.signature(STOCK.__init__).parameters)[4:]  # self, module, two of devices

    class OnCpu(given):
        def __init__(self, module, device_ids=None, output_device=None, *args, **kwargs):
            super().__init__(module, **dict(zip(names, args, strict=False)), **kwargs)

    if given is not STOCK and not hasattr(given, "reducer"):
        OnCpu.reducer = property(ReducerAnswers)
    OnCpu.__name__ = OnCpu.__qualname__ = given.__name__
    OnCpu.__module__ = given.__module__
    setattr(sys.modules[given.__module__], given.__name__, OnCpu)
    for module in (parallel, distributed, tests):
        module.DistributedDataParallel = OnCpu
