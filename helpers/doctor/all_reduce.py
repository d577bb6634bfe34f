"""One small all-reduce on each backend that this machine has, its values checked."""

import torch
import torch.distributed as dist

from helpers.doctor.row import BAD, Row
from helpers.launch import RankFailed, run_function
from helpers.process_group import process_group

TIMEOUT_S = 10.0
ADVICE = {
    "gloo": "is GLOO_SOCKET_IFNAME an interface that is up (lo on one machine)? is loopback up?",
    "nccl": (
        "run it again with NCCL_DEBUG=INFO. If it hangs: NCCL_P2P_DISABLE=1 (then look at IOMMU "
        "and ACS), NCCL_SOCKET_IFNAME=lo, a larger /dev/shm, the driver"
    ),
}


def all_reduce_rows(num_gpus: int, timeout_s: float = TIMEOUT_S) -> list[Row]:
    """Return a row for gloo, and one for NCCL where there are GPUs. Local; it starts ranks.

    NCCL runs on all GPUs, up to 8, with a rank on each; not run on a GPU yet.
    """
    rows = [all_reduce_row("gloo", 2, timeout_s)]
    if num_gpus:
        rows.append(all_reduce_row("nccl", min(num_gpus, 8), 2 * timeout_s))
    return rows


def all_reduce_row(backend: str, world_size: int, timeout_s: float, work=None) -> Row:
    """Return whether ranks find the right sum in time; `work` does it on each. Local."""
    subject = f"all-reduce, {backend}"
    work = work or _sum_of_ranks
    try:
        sums = run_function(work, backend, nproc_per_node=world_size, timeout_s=timeout_s)
    except RankFailed as failed:
        found = f"{failed.exception_type}: {failed.message.splitlines()[0]}"
        if failed.exception_type == "TimeoutError":
            found = f"not done after {timeout_s:g} s"
        return Row(subject, found, BAD, ADVICE[backend])
    expected = [world_size * (world_size + 1) / 2] * world_size
    if sums != expected:
        return Row(subject, f"found {sums}, expected {expected}", BAD, ADVICE[backend])
    return Row(subject, f"{world_size} ranks, the right sum on each")


def _sum_of_ranks(backend: str) -> float:
    with process_group(backend=backend, timeout_s=5) as ranks:
        total = torch.full((1000,), ranks.rank + 1.0, device=ranks.device)
        dist.all_reduce(total)
        assert bool((total == total[0]).all())
        return total[0].item()
