"""`all_reduce_one_shot`: every rank reads what all ranks hold, and adds it up itself."""

import torch
import torch.distributed as dist
from torch import Tensor

from helpers.kernels import checks, reference
from helpers.kernels.dispatch import NUM_WARPS, kernel, num_programs, runs_triton, writes
from helpers.kernels.workspace import NUM_LANES, workspace_of

#: Elements a program takes at a time: fewer than elsewhere, so that small messages too are
#: spread over many processors.
BLOCK = 1024
#: About how long a kernel takes to ask once for a signal, compiled and interpreted.
ASK_S = {"cuda": 1e-6, "cpu": 5e-5}


@torch.no_grad()
def all_reduce_one_shot(
    tensor: Tensor, group: dist.ProcessGroup | None = None, *, timeout_s: float = 30.0
) -> None:
    """Sum a tensor over all ranks of one host, in place. Every rank must call this.

    tensor: floating point, dense, of any shape and strides, alike in length and dtype on all
    ranks. Elements are added in rank order, in float32 (float64 of float64), and rounded once:
    the same bits on every rank, from kernel and reference. NaN and infinities are carried through.

    A rank tells all others that its data are there, waits until all have told, reads
    (world size) x size bytes, and tells and waits again before it leaves: two latencies, whatever
    the world size, where a ring takes 2 (world size - 1). For small messages. The first call of
    a group, and one larger than any before, exchange addresses and wait for all.

    On GPUs the memory is torch's symmetric memory, between processes with TRITON_INTERPRET=1 it
    is shared memory; else, and for float64, the reference gathers by `group`'s own all_gather.
    A length that differs between ranks is not found out: the sum is wrong, or the call hangs
    until `timeout_s`, which is counted in signals asked for, so it is rough; where it makes one
    rank exchange addresses anew, until the group's own timeout. One stream a group.
    Raises TypeError for a sparse tensor or one that is no floating point; ValueError outside the
    group or for a bad timeout; TimeoutError naming the late ranks, on a GPU at a later call.
    Chapter 09 builds it.
    """
    checks.check_dense(tensor, "tensor")
    checks.check_floating(tensor, "tensor")
    if not 0 < timeout_s < float("inf"):
        raise ValueError(f"found timeout_s={timeout_s}, expected a positive, finite number")
    if dist.get_rank(group) < 0:
        raise ValueError("this rank is not in the group, expected calls of its members only")
    group = dist.group.WORLD if group is None else group
    if not runs_triton(tensor):
        reference.all_reduce_one_shot(tensor, group)
        return
    if tensor.numel():
        own = tensor.contiguous()
        _launch(own, group, timeout_s)
        if own is not tensor:
            tensor.copy_(own)


def _launch(tensor: Tensor, group: dist.ProcessGroup, timeout_s: float) -> None:
    size_bytes = tensor.numel() * tensor.element_size()
    space = workspace_of(group, tensor.device, size_bytes)
    space.check()
    space.data[:size_bytes].view(tensor.dtype).copy_(tensor.view(-1))
    grid = (min(NUM_LANES, num_programs(tensor.numel(), BLOCK)),)
    with writes(tensor):
        kernel("one_shot", "one_shot_kernel")[grid](
            tensor,
            space.addresses,
            space.rank,
            space.num_rounds,
            tensor.numel(),
            space.late,
            max(1, int(timeout_s / ASK_S[tensor.device.type])),
            WORLD_SIZE=space.world_size,
            BLOCK=BLOCK,
            num_warps=NUM_WARPS,
        )
    space.num_rounds += 1
    space.look_for_late()
    if tensor.device.type == "cpu":
        space.check()
