"""`all_reduce` through shared memory: what it refuses, and what it keeps for each group."""

import weakref
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from helpers import traffic
from helpers.collectives.agreement import DTYPES
from helpers.collectives.calls import flat_of, opened, write_back

from .peers import Peers
from .segments import SegmentedSum, block_bytes
from .work import Line, completed


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
    ring on loopback. Source: MPI libraries' shared-memory collectives. Chapter 08 uses it.
    """
    group = opened(group)
    _check(tensor)
    if not timeout_s > 0:
        raise ValueError(f"timeout_s: found {timeout_s!r}, expected seconds, more than 0")
    work = _start(tensor, group, async_op, timeout_s)
    traffic.record("all_reduce", tensor.numel() * tensor.element_size(), group)
    return work


def _start(
    tensor: Tensor, group: dist.ProcessGroup, async_op: bool, timeout_s: float
) -> dist.Work | None:
    if dist.get_world_size(group) == 1:
        return completed(tensor) if async_op else None
    channel = _channel(group, timeout_s)
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
    if tensor.dtype not in DTYPES:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise ValueError(f"found a tensor of {tensor.dtype}, expected one of {names}")
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    if tensor.numel() and any(length > 1 and step == 0 for length, step in steps):
        raise ValueError("found an expanded tensor, expected a place of its own for each element")


class Channel:
    """What a group keeps between its calls: memory, pipes, the line of its operations."""

    def __init__(self, group: dist.ProcessGroup, timeout_s: float) -> None:
        self.line = Line()
        self._failure = ""
        self._peers = Peers(group, block_bytes(dist.get_world_size(group)), timeout_s)

    def task(self, tensor: Tensor, timeout_s: float) -> Callable[[], None]:
        """What is to be done for one tensor, when its turn has come."""

        mode = torch.inference_mode if tensor.is_inference() else torch.no_grad

        def sum_in_place() -> None:
            if self._failure:
                raise RuntimeError(f"an all-reduce of this group has failed: {self._failure}")
            with mode():  # a thread does not inherit it
                flat = flat_of(tensor)
                try:
                    SegmentedSum(self._peers, flat, timeout_s).run()
                except ValueError:
                    raise  # all ranks have met and go on together
                except BaseException as error:
                    self._failure = str(error) or type(error).__name__
                    self._peers.close()  # tells the others
                    raise
                write_back(flat, tensor)

        return sum_in_place

    def close(self) -> None:
        """Give memory and pipes back once all operations are through. Local."""
        self.line.close(self._peers.close)


_channels: weakref.WeakKeyDictionary[dist.ProcessGroup, Channel] = weakref.WeakKeyDictionary()


def _channel(group: dist.ProcessGroup, timeout_s: float) -> Channel:
    if group not in _channels:
        _channels[group] = Channel(group, timeout_s)
        weakref.finalize(group, _channels[group].close)
    return _channels[group]
