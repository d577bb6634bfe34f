"""Stop and resume: what a training keeps in a checkpoint, and whether all of it came back."""

import io
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from helpers.compare.notes import whole
from helpers.compare.trainer import Trainer


def save(trainer: Trainer) -> bytes:
    """Return rank 0's checkpoint, as torch.save writes it. Every rank must call this."""
    kept = {"state": _user_state(trainer), "memory": _memory(trainer)}
    buffer = io.BytesIO()
    torch.save(kept, buffer)
    copies = [buffer.getvalue()]
    dist.broadcast_object_list(copies, src=0)
    return copies[0]


def load(trainer: Trainer, checkpoint: bytes) -> str:
    """Load it with weights_only=True; return what of optimizer and scheduler is not as saved.

    Every rank must call this. What is returned is empty where all of it came back.
    """
    device = trainer.ranks.device
    kept = torch.load(io.BytesIO(checkpoint), weights_only=True, map_location=device)
    own, parts = trainer.training.load_state, (trainer.optimizer, trainer.scheduler)
    if own:
        own(kept["state"], trainer.model, *parts)
    else:
        _load_state(trainer, kept["state"])
    return _lost(kept["memory"], _memory(trainer))


def _user_state(trainer: Trainer) -> Any:
    own, module = trainer.training.save_state, trainer.module
    if own:
        return own(trainer.model, trainer.optimizer, trainer.scheduler)
    if _is_sharded(trainer):
        # Not needed otherwise, and slow to import.
        from torch.distributed.checkpoint import state_dict as gathered

        options = gathered.StateDictOptions(full_state_dict=True, cpu_offload=True)
        model, optimizer = gathered.get_state_dict(module, trainer.optimizer, options=options)
    else:
        model, optimizer = module.state_dict(), _optimizer_state(trainer.optimizer)
    state = {"model": model, "optimizer": optimizer}
    return state | ({"scheduler": trainer.scheduler.state_dict()} if trainer.scheduler else {})


def _optimizer_state(optimizer: Any) -> Mapping[str, Any]:
    if not _is_spread(optimizer):
        return optimizer.state_dict()
    optimizer.consolidate_state_dict(to=0)
    return optimizer.state_dict() if dist.get_rank() == 0 else {}


def _is_spread(owner: Any) -> bool:
    """Whether each rank keeps a part of its state, as with ZeroRedundancyOptimizer."""
    return hasattr(owner, "consolidate_state_dict")


def _load_state(trainer: Trainer, state: Mapping[str, Any]) -> None:
    module, optimizer = trainer.module, trainer.optimizer
    if _is_sharded(trainer):
        from torch.distributed.checkpoint import state_dict as gathered

        gathered.set_state_dict(
            module,
            optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
            options=gathered.StateDictOptions(full_state_dict=True),
        )
    else:
        module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    if trainer.scheduler:
        trainer.scheduler.load_state_dict(state["scheduler"])


def _is_sharded(trainer: Trainer) -> bool:
    """Whether its parameters are DTensors, as fully_shard makes them."""
    return any(hasattr(parameter, "full_tensor") for parameter in trainer.module.parameters())


def _memory(trainer: Trainer) -> dict[str, Any]:
    """Return all numbers that optimizer and scheduler carry from step to step, by name.

    Every rank must call this. Nothing of an optimizer that is spread over the ranks.
    """
    owners = {"optimizer": trainer.optimizer, "scheduler": trainer.scheduler}
    states = {
        name: owner.state_dict()
        for name, owner in owners.items()
        if owner and not _is_spread(owner)
    }
    return {
        name: whole(x).cpu() if isinstance(x, Tensor) else x
        for owner, state in states.items()
        for name, x in _numbers(state, f"the {owner}'s ")
    }


def _numbers(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            if key != "params":  # the optimizer's numbering of parameters
                yield from _numbers(part, f"{name}{'' if name[-1] == ' ' else '.'}{key}")
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            yield from _numbers(part, f"{name}[{index}]")
    elif isinstance(value, Tensor | int | float):
        yield name, value


def _lost(saved: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    names = [name for name, x in saved.items() if not _is_same(found.get(name), x)]
    if not names:
        return ""
    there = "is missing" if names[0] not in found else "has another value"
    return f"after loading {names[0]} {there} ({len(names)} of {len(saved)} numbers or tensors)"


def _is_same(found: Any, saved: Any) -> bool:
    if isinstance(found, Tensor) and isinstance(saved, Tensor):
        saved = saved.cpu()
        return found.shape == saved.shape and torch.allclose(
            found.double(), saved.double(), rtol=1e-6, atol=0.0, equal_nan=True
        )
    if isinstance(found, int | float) and isinstance(saved, int | float):
        return math.isclose(found, saved, rel_tol=1e-6)
    return False
