"""What the functions of a training return, and what can be trained with."""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from helpers.compare.notes import Note


def check_model(module: Any) -> None:
    """Raise TypeError for what is no module, ValueError for complex or missing numbers. Local."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"make_model returned {_kind(module)}, expected a torch.nn.Module")
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(tensor) or tensor.is_meta:
            raise ValueError(
                f"{name}: found no numbers yet, expected them from make_model (a lazy module "
                "needs a forward first, one on the meta device to_empty)"
            )
        if tensor.is_complex():
            raise ValueError(
                f"{name}: found {tensor.dtype}, expected real numbers: the cast to the gate's "
                "dtype drops imaginary parts (see torch.view_as_real)"
            )


def check_wrapped(model: Any, module: nn.Module) -> None:
    """Raise TypeError for what cannot be called, ValueError for a model of other numbers. Local."""
    if not callable(model):
        raise TypeError(f"wrap returned {_kind(model)}, expected the model that it wraps")
    found = {id(parameter) for parameter in getattr(model, "parameters", list)()}
    if found and not any(id(parameter) in found for parameter in module.parameters()):
        raise ValueError("wrap returned a model of other parameters, expected those it is given")


def check_optimizer(optimizer: Any, module: nn.Module, is_reference: bool) -> None:
    """Raise TypeError for no optimizer, ValueError where it moves another model's numbers. Local.

    Under a wrapper it may hold others, such as copies in a wider dtype.
    """
    if not (hasattr(optimizer, "step") and hasattr(optimizer, "param_groups")):
        raise TypeError(f"make_optimizer returned {_kind(optimizer)}, expected an optimizer")
    ids = held(optimizer)
    others = len(ids - {id(parameter) for parameter in module.parameters()})
    if others and is_reference:
        raise ValueError(
            f"make_optimizer: {others} of its {len(ids)} parameters are not the model's, "
            "expected those that it is given"
        )


def held(optimizer: Any) -> set[int]:
    """Return the ids of the parameters that it moves. Local."""
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}


def check_counts(training: Any) -> None:
    """Raise unless count gives a number above 0 for each whole batch. Local."""
    for step, batch in enumerate(training.batches):
        number = training.count(batch)
        try:
            found = float(number)
        except (TypeError, ValueError, RuntimeError):
            raise TypeError(f"count returned {_kind(number)}, expected a number") from None
        if not 0 < found < math.inf:
            raise ValueError(
                f"step {step}: count gives {found:g} for the whole batch, expected more"
            )


def explain(training: Any, ranks: Any) -> None:
    """Raise TypeError where loss_sum returns what has no gradient; for after a failure. Local."""
    module = training.build(ranks)
    part = training.window(training.batches[0], ranks, training.slices)[0]
    loss = training.loss_sum(module, part)
    expected = "expected a tensor of one number that has a gradient"
    if not isinstance(loss, Tensor):
        raise TypeError(f"loss_sum returned {_kind(loss)}, {expected}")
    if loss.numel() != 1:
        raise TypeError(f"loss_sum returned a tensor of {tuple(loss.shape)}, {expected}")
    if not loss.requires_grad:
        why = "detached, without a parameter that requires one, or under no_grad"
        raise TypeError(f"loss_sum returned a tensor without a gradient ({why}), {expected}")


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def check_losses(expected: Sequence[Note]) -> None:
    """Once a loss is NaN all numbers are, in whatever way they are split."""
    for note in expected:
        loss = note.tensors[""].item() if note.kind == "loss" else 0.0
        if not math.isfinite(loss):
            raise ValueError(
                f"step {note.step}: the loss in one process is {loss}, expected a finite one"
            )
