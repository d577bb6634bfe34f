"""Gradients of a window of micro-batches, normalised once by the count of the whole window."""

import contextlib
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

LossSum = Callable[[nn.Module, Any], Tensor]


def accumulate_gradients(
    model: nn.Module,
    window: Iterable[Any],
    loss_sum: LossSum,
    count: Callable[[Any], int],
    group: dist.ProcessGroup | None = None,
    *,
    backward: Callable[[Tensor], Any] = Tensor.backward,
) -> float:
    """Add the gradient of the window's mean loss to the parameters' gradients; return that mean.

    Local for a plain model without a group. With a group, or with a model that has `no_sync`
    (torch's DistributedDataParallel, ours), every rank must call this: the mean is over the
    windows of all ranks, which may differ in length. Counts are summed over the ranks before
    the first forward, losses after the last backward. A plain model's gradients are then this
    rank's share, for the caller to sum; one with `no_sync` sums them itself, once.

    `loss_sum` returns a scalar, a sum over what `count` counts; let it be float32 or wider, since
    it is scaled in its dtype. `backward` gets each scaled loss; a GradScaler needs
    `lambda loss: scaler.scale(loss).backward()`. A count of 0 on all ranks gives zero gradients
    and 0.0.

    Raises ValueError on every rank, before any forward, where a window is empty or a count is
    negative or not finite. Layers that communicate in forward (SyncBatchNorm) hang where windows
    differ in length. Source: arXiv:2006.15704, section 3.2.4. Built in chapters 03 and 12.
    """
    window = list(window)  # the count of all is needed before the first backward
    if hasattr(model, "no_sync"):
        group = _group_of(model, group)
    total = _agree_on_count(window, [float(count(batch)) for batch in window], model, group)
    losses = _run(model, window, loss_sum, _scale(model, total, group), backward)
    loss = torch.stack(losses).double().sum()
    if group is not None:
        dist.all_reduce(loss, group=group)
    return loss.item() / total if total else 0.0


def _scale(model: nn.Module, total: float, group: dist.ProcessGroup | None) -> float:
    """Return what turns a sum into its part of the mean, after the model's own averaging."""
    averages = hasattr(model, "no_sync") and group is not None
    world_size = dist.get_world_size(group) if averages else 1
    return world_size / total if total else 0.0


def _run(
    model: nn.Module,
    window: list[Any],
    loss_sum: LossSum,
    scale: float,
    backward: Callable[[Tensor], Any],
) -> list[Tensor]:
    """Run forward and backward of each micro-batch, the last one outside `no_sync`."""
    losses = []
    for index, batch in enumerate(window):
        waits = hasattr(model, "no_sync") and index < len(window) - 1
        with model.no_sync() if waits else contextlib.nullcontext():
            losses.append(_forward_and_backward(model, batch, loss_sum, scale, backward))
    return losses


def _forward_and_backward(
    model: nn.Module,
    batch: Any,
    loss_sum: LossSum,
    scale: float,
    backward: Callable[[Tensor], Any],
) -> Tensor:
    """Return the loss without its graph, which ends with this function's variables."""
    loss = loss_sum(model, batch)
    backward(loss * scale)
    return loss.detach()


def _group_of(model: nn.Module, group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """Return the group over which the model synchronises, else its losses would be misscaled."""
    own = getattr(model, "process_group", None) or group or dist.group.WORLD
    if group is not None and group is not own:
        raise ValueError("a group that is not the model's own process group, expected None")
    return own


def _agree_on_count(
    window: list[Any], counts: list[float], model: nn.Module, group: dist.ProcessGroup | None
) -> float:
    """Return the count over all ranks; raise the same ValueError on each where one has no window.

    One all-reduce of [world_size + 1] numbers: the windows' lengths by rank, and the count.
    A bad count travels as NaN, which no sum hides.
    """
    is_good = all(math.isfinite(number) and number >= 0 for number in counts)
    total = sum(counts) if is_good else math.nan
    rank, world_size = 0, 1
    if group is not None:
        rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    lengths = [len(window) * (rank == other) for other in range(world_size)]
    numbers = torch.tensor([*lengths, total], dtype=torch.float64)  # exact up to 2**53
    if group is not None:
        device = next((parameter.device for parameter in model.parameters()), None)
        numbers = numbers.to(device)
        dist.all_reduce(numbers, group=group)
    *lengths, total = numbers.tolist()
    empty = [rank for rank, length in enumerate(lengths) if length == 0]
    if empty:
        where = f" on ranks {empty} of {world_size}" if group is not None else ""
        raise ValueError(f"an empty window{where}, expected at least one micro-batch")
    if math.isnan(total):
        found = f"counts {counts} here" if not is_good else "a bad count on another rank"
        raise ValueError(f"{found}, expected finite numbers that are not negative")
    return total
