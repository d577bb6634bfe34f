"""`all_reduce` through shared memory and `empty`, a tensor that lies in it: what they refuse."""

import torch
import torch.distributed as dist
from torch import Tensor

from helpers import traffic
from helpers.collectives.agreement import DTYPES
from helpers.collectives.calls import opened

from .channel import channel_of
from .work import completed


def all_reduce(
    tensor: Tensor,
    group: dist.ProcessGroup | None = None,
    *,
    async_op: bool = False,
    timeout_s: float = 30.0,
) -> dist.Work | None:
    """Sum a tensor over all ranks, in place; return a Work if async_op. Every rank must call this.

    `tensor`: on the CPU, dense, of any shape and strides, alike in length and dtype on all ranks
    (float64/32/16, bfloat16, int64/32/16/8, uint8). Elements are summed in rank order, in the
    tensor's dtype: the same bits on every rank, on every run, in whatever tensor they come.
    `async_op`: a thread does the work, in call order; calls that follow wait for their turn.
    `timeout_s`: how long ranks wait for each other, 30 s as a process group of ours.

    The first call of a group also exchanges addresses (all_gather_object) and waits for all; the
    memory, 4 to 6 MiB a rank, is used again and goes with the group. An emulated link does not
    pace it. helpers.traffic counts an all_reduce.

    Raises, before anything is sent, ValueError for a tensor that is on another device, sparse,
    expanded, or of another dtype, and for a rank outside the group; RuntimeError on every rank
    where they are on different hosts. On every rank: ValueError where lengths or dtypes differ;
    RuntimeError naming the ranks that are gone, or late, and on all later calls.

    Two copies and one sum a rank, against two sends and two receives through the kernel of a
    ring on loopback; less where every rank's tensor is one that `empty` has made for this group:
    each rank sums its part of all of them where it lies, and writes it to all. Once a rank has
    waited for that, no other reads its tensor any more.
    Source: MPI libraries' shared-memory collectives. Chapter 08 uses it.
    """
    group = opened(group)
    _check(tensor)
    _check_timeout(timeout_s)
    work = _start(tensor, group, async_op, timeout_s)
    traffic.record("all_reduce", tensor.numel() * tensor.element_size(), group)
    return work


def empty(
    num_elements: int,
    dtype: torch.dtype,
    group: dist.ProcessGroup | None = None,
    *,
    timeout_s: float = 30.0,
) -> Tensor:
    """Return zeros [num_elements] on the CPU, for `all_reduce` to sum without copies.

    Every rank must call this, in the same order, also among its `all_reduce`s. The tensor is
    this rank's own; the others touch it while they sum it with theirs, whole: a part of it is
    summed as any other tensor, and so is one whose partner a rank has not brought along. The
    memory has no name, so none is left behind, and goes when the ranks' tensors and all views
    of them have.

    Raises ValueError for another dtype than `all_reduce` takes, a negative length, and, on every
    rank, where lengths or dtypes differ; RuntimeError as `all_reduce`.
    `DistributedDataParallel` lays its buckets here: `all_reduce.empty` is this function.
    """
    group = opened(group)
    _check_dtype(dtype)
    _check_timeout(timeout_s)
    if not isinstance(num_elements, int) or num_elements < 0:
        raise ValueError(f"num_elements: found {num_elements!r}, expected a number, 0 or more")
    if dist.get_world_size(group) == 1:
        return torch.zeros(num_elements, dtype=dtype)
    return channel_of(group, timeout_s).make(num_elements, dtype, group, timeout_s)


all_reduce.empty = empty  # by which a wrapper finds the memory that suits the sum


def _start(
    tensor: Tensor, group: dist.ProcessGroup, async_op: bool, timeout_s: float
) -> dist.Work | None:
    if dist.get_world_size(group) == 1:
        return completed(tensor) if async_op else None
    channel = channel_of(group, timeout_s)
    task = channel.task(tensor, timeout_s)
    if async_op:
        return channel.line.start(tensor, task)
    channel.line.run(tensor, task)
    return None


def _check(tensor: Tensor) -> None:
    if not isinstance(tensor, Tensor):
        raise ValueError(f"found {type(tensor).__name__}, expected a tensor")
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        found = tensor.device if tensor.device.type != "cpu" else tensor.layout
        raise ValueError(f"found a tensor on {found}, expected a dense one on the CPU")
    _check_dtype(tensor.dtype)
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    if tensor.numel() and any(length > 1 and step == 0 for length, step in steps):
        raise ValueError("found an expanded tensor, expected a place of its own for each element")


def _check_dtype(dtype: torch.dtype) -> None:
    if dtype not in DTYPES:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise ValueError(f"found a tensor of {dtype}, expected one of {names}")


def _check_timeout(timeout_s: float) -> None:
    if not timeout_s > 0:
        raise ValueError(f"timeout_s: found {timeout_s!r}, expected seconds, more than 0")
