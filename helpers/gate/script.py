"""A training script, by the functions that it shows to the gate.

A script defines, at module level (what it does when run belongs under `if __name__ ==
"__main__":`, since the gate imports it):

  make_model()                       the model, plain, on the CPU
  make_optimizer(parameters)         its optimizer
  batches()                          whole batches of all ranks, in their order: a tensor, or a
                                     tuple, list or dict of such, samples along dimension 0
  loss_sum(model, batch)             the loss, summed over what is counted
  count(batch)                       how many that is: samples, or tokens that are not padding

They are the reference: one process, whole batches, loss_sum / count, one backward, one step.
The rest may be left out:

  wrap(model)                        what makes it data parallel on each rank: torch's
                                     DistributedDataParallel, fully_shard, your own class
                                     (DataParallelNaive)
  train_step(model, optimizer, micro_batches)
                                     your own code of one optimizer step, zero_grad to step, over
                                     this rank's micro-batches; it returns the loss that it tells
                                     of the batch of all ranks, or None. Parameters named
                                     scheduler and num_micro_batches are given, if it has them.
                                     The last window is one micro-batch short of that number
  make_scheduler(optimizer)          a scheduler, stepped once a batch (train_step does so itself)
  clip(parameters)                   what clips the gradient before the optimizer's step
                                     (train_step does so itself)
  save_state(model, optimizer, scheduler), load_state(state, model, optimizer, scheduler)
                                     your own checkpoint, of plain containers and tensors; every
                                     rank calls both, what rank 0 saves is loaded
  same_start = True                  make_model draws the same numbers on every rank, and wrap
                                     copies none (fully_shard); else ranks start apart, on purpose

A window is a rank's micro-batches of one step. Dropout and BatchNorm differ by nature once a
batch is split: where make_model returns model.eval(), the rest is compared. What train_step adds
up in float32, such as torch.zeros(()), is 1e-8 off in float64. The gate deals out the samples, so
it sees nothing of your loader (set_epoch, shuffling), nor messages, nor time. For those, and for
a difference whose cause it cannot name, ask the book's pages "Your own script", "The bug museum".
"""

import dataclasses
import functools
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from helpers.compare.setup import Training
from helpers.compare.training import first_batches

REQUIRED = ("make_model", "make_optimizer", "batches", "loss_sum", "count")
OPTIONAL = ("wrap", "train_step", "make_scheduler", "clip", "save_state", "load_state")


class ScriptError(ValueError):
    """A script that the gate cannot use; its text says why."""


@dataclasses.dataclass(frozen=True)
class Function:
    """A function of a script, which travels to a rank by path and name and is loaded there."""

    path: str
    name: str

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.__wrapped__(*arguments, **options)

    @property
    def __wrapped__(self) -> Callable:  # inspect.signature looks here for what it asks for
        return getattr(load(self.path), self.name)


def training_of(path: Path, steps: int, dtype: torch.dtype, slices: int = 1) -> Training:
    """Return what the script trains, with its first batches. Local.

    Raises ScriptError where the file is missing, cannot be imported or lacks a function.
    """
    load.cache_clear()  # it may have changed since
    where = str(path.absolute())
    module = load(where)
    missing = [name for name in REQUIRED if not callable(getattr(module, name, None))]
    if missing:
        raise ScriptError(
            f"{path.name}: no function {', '.join(missing)}; expected {', '.join(REQUIRED)}"
        )
    found = [name for name in OPTIONAL if getattr(module, name, None) is not None]
    same_start = getattr(module, "same_start", False)
    if not isinstance(same_start, bool):
        raise ScriptError(f"{path.name}: same_start is {same_start!r}, expected True or False")
    given = {name: Function(where, name) for name in (*REQUIRED, *found)}
    given["batches"] = first_batches(module.batches(), steps)
    return Training(**given, dtype=dtype, same_start=same_start, slices=slices)


@functools.cache
def load(path: str) -> ModuleType:
    """Return the script as a module, imported once in each process; its folder on sys.path. Local.

    Raises ScriptError where it is missing or fails.
    """
    file = Path(path)
    if not file.is_file():
        raise ScriptError(f"no script {file.name!r} in {str(file.parent)!r}")
    spec = importlib.util.spec_from_file_location(f"gate_script_{file.stem}", file)
    if spec is None:
        raise ScriptError(f"{file.name}: expected a name that ends in .py")
    module = importlib.util.module_from_spec(spec)
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ScriptError(f"{file.name}: {type(error).__name__}: {error}") from error
    return module
