"""A training script, by the functions that it shows to the gate.

A script defines, at module level (what it does when run belongs under `if __name__ ==
"__main__":`, since the gate imports it, in every process that it starts, without words of a
command line):

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
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist

from helpers.compare.setup import Training
from helpers.compare.training import first_batches

from .load import ScriptError, check_file, load, place_of, told

REQUIRED = ("make_model", "make_optimizer", "batches", "loss_sum", "count")
OPTIONAL = ("wrap", "train_step", "make_scheduler", "clip", "save_state", "load_state")


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


def training_of(
    path: Path, steps: int, dtype: torch.dtype, slices: int = 1, timeout_s: float = 60.0
) -> Training:
    """Return what the script trains, with its first batches. Local: it launches one rank.

    Raises ScriptError where the file is missing, cannot be imported or lacks a function, and
    RankFailed where it ends that rank, or does not come to an end within `timeout_s`.
    """
    from helpers.launch import run_function  # not needed on a rank, and slow to import

    path = path.absolute()
    check_file(path)
    # Batches may be of classes that lie next to the script. Last: nothing there hides a library.
    sys.path += [folder for folder in place_of(path)[1] if folder not in sys.path]
    (found,) = run_function(
        _read, path, steps, dtype, slices, nproc_per_node=1, timeout_s=timeout_s
    )
    if isinstance(found, ScriptError):
        raise found
    return found


def _read(path: Path, *options: Any) -> Training | ScriptError:
    try:
        return _training(path, *options)
    except ScriptError as error:
        return error


def _training(path: Path, steps: int, dtype: torch.dtype, slices: int) -> Training:
    module = load(str(path))
    cloudpickle.register_pickle_by_value(module)  # elsewhere it is not there to be imported
    if dist.is_initialized():
        raise ScriptError(
            f"{path.name}: it opens a process group as it is imported, expected that under "
            '`if __name__ == "__main__":` (the gate opens its own)'
        )
    missing = [name for name in REQUIRED if not callable(getattr(module, name, None))]
    if missing:
        raise ScriptError(
            f"{path.name}: no function {', '.join(missing)}; expected {', '.join(REQUIRED)}"
        )
    found = [name for name in OPTIONAL if getattr(module, name, None) is not None]
    same_start = getattr(module, "same_start", False)
    if not isinstance(same_start, bool):
        raise ScriptError(f"{path.name}: same_start is {same_start!r}, expected True or False")
    given = {name: Function(str(path), name) for name in (*REQUIRED, *found)}
    given["batches"] = _batches(path, module, steps)
    return Training(**given, dtype=dtype, same_start=same_start, slices=slices)


def _batches(path: Path, module: Any, steps: int) -> list[Any]:
    try:
        return first_batches(module.batches(), steps)
    except (Exception, SystemExit) as error:
        raise ScriptError(told(path, error)) from error
