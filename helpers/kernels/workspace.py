"""Memory of each rank that the kernels of all ranks of one host see: signals, then data."""

import weakref

import torch
import torch.distributed as dist
from torch import Tensor

from helpers import host_memory

#: Programs of a one-shot all-reduce, as in helpers.kernels.jit.one_shot.
NUM_LANES = 64
#: Signals count two a round, in 32 bits.
MAX_ROUNDS = 2**30 - 1
#: Made at least this large, so that a few small messages do not make it anew each time.
MIN_DATA_BYTES = 1 << 20


class Workspace:
    """This rank's bytes and the addresses of all ranks'. Every rank must construct it, alike.

    data: uint8 [data_bytes], this rank's, after its signals. addresses: int64 [world size], of
    all ranks' bytes, by rank, on the device. num_rounds: all-reduces done.
    late: int32 [world size]; a kernel that waited in vain for a rank puts 1 there.

    Raises RuntimeError where ranks are not of one host, or their GPUs do not see each other.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device, data_bytes: int) -> None:
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)
        self.data_bytes, self.num_rounds = data_bytes, 0
        signal_bytes = NUM_LANES * self.world_size * 4
        make = _between_gpus if device.type == "cuda" else _between_processes
        self._own, by_rank, self._keeps = make(signal_bytes + data_bytes, group, device)
        self.data = self._own[signal_bytes:]
        self.addresses = torch.tensor(by_rank, dtype=torch.int64, device=device)
        self.late = torch.zeros(self.world_size, dtype=torch.int32, device=device)
        self._seen_late = torch.zeros_like(
            self.late, device="cpu", pin_memory=device.type == "cuda"
        )

    def look_for_late(self) -> None:
        """Fetch `late` without waiting for a GPU: what it says is seen now, or at a later call."""
        self._seen_late.copy_(self.late, non_blocking=True)

    def check(self) -> None:
        """Raise TimeoutError if a kernel is known to have waited in vain; then all calls do."""
        ranks = self._seen_late.nonzero().flatten().tolist()
        if ranks:
            raise TimeoutError(
                f"one-shot all-reduce: rank {self.rank} has waited in vain for rank "
                f"{', '.join(map(str, ranks))}; results since then are wrong"
            )


def _between_processes(
    num_bytes: int, group: dist.ProcessGroup, device: torch.device
) -> tuple[Tensor, list[int], object]:
    own = host_memory.share(num_bytes)
    offered = [None] * dist.get_world_size(group)
    blocks = []
    try:
        dist.all_gather_object(offered, own.address, group=group)
        for rank, address in enumerate(offered):
            is_own = rank == dist.get_rank(group)
            blocks.append(own if is_own else host_memory.attach(address, num_bytes))
        areas = [torch.frombuffer(block.buffer, dtype=torch.uint8) for block in blocks]
        dist.barrier(group)  # now all have opened what is ours
    finally:
        for block in [own, *blocks]:
            block.close()  # the tensors keep what they look at
    return areas[dist.get_rank(group)], [area.data_ptr() for area in areas], areas


def _between_gpus(
    num_bytes: int, group: dist.ProcessGroup, device: torch.device
) -> tuple[Tensor, list[int], object]:
    import torch.distributed._symmetric_memory as symmetric_memory

    own = symmetric_memory.empty(num_bytes, dtype=torch.uint8, device=device)
    own.zero_()
    torch.cuda.synchronize(device)  # no signal may arrive before the zeros
    handle = symmetric_memory.rendezvous(own, group.group_name)
    if handle is None:
        raise RuntimeError("these GPUs do not see each other's memory, which a one-shot needs")
    if handle.buffer_ptrs[dist.get_rank(group)] != own.data_ptr():
        raise RuntimeError("symmetric memory: found an allocation that starts elsewhere")
    dist.barrier(group)
    return own, list(handle.buffer_ptrs), handle


_workspaces: weakref.WeakKeyDictionary[dist.ProcessGroup, dict[torch.device, Workspace]] = (
    weakref.WeakKeyDictionary()
)


def workspace_of(group: dist.ProcessGroup, device: torch.device, num_bytes: int) -> Workspace:
    """Return the group's workspace, made anew where it is too small. Every rank must call this."""
    by_device = _workspaces.setdefault(group, {})
    found = by_device.get(device)
    if found is None or found.data_bytes < num_bytes or found.num_rounds == MAX_ROUNDS:
        data_bytes = max(MIN_DATA_BYTES, 1 << (num_bytes - 1).bit_length())
        by_device[device] = Workspace(group, device, data_bytes)
    return by_device[device]
