"""Our algorithms beside the library's all-reduce: wall time and CPU time, every run."""

import time
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from helpers.collectives.choice import ALGORITHMS


class Cost(NamedTuple):
    """One all-reduce: seconds until the slowest rank had the sum, CPU seconds of all together."""

    wall_s: float
    cpu_s: float


def costs_beside_library(
    size_bytes: int = 1 << 26,
    group: dist.ProcessGroup | None = None,
    *,
    num_rounds: int = 5,
    device: torch.device | str = "cpu",
) -> dict[str, list[Cost]]:
    """Return the Cost of each algorithm, and of "library", in every round. Every rank must call.

    float32 tensors of `size_bytes` (64 MiB: what lies in a few buckets of gradients). A round
    runs all, forwards and backwards in turn, so that a machine that slows down slows all of
    them alike; one round of warm-up is not returned. CPU seconds are those of the processes
    with all their threads: on shared cores they repeat better than wall time. All ranks return
    the same. For a report: on an oversubscribed host no order among them is certain.
    """
    tensor = torch.zeros(size_bytes // 4, device=device)
    ways = {**ALGORITHMS, "library": dist.all_reduce}
    costs = {name: [] for name in ways}
    for number in range(num_rounds + 1):
        for name in list(ways)[:: 1 if number % 2 else -1]:
            cost = _cost(ways[name], tensor, group)
            if number:
                costs[name].append(cost)
    return costs


def _cost(way: Callable[..., object], tensor: Tensor, group: dist.ProcessGroup | None) -> Cost:
    _finish(tensor)
    dist.barrier(group)
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    way(tensor, group=group)
    _finish(tensor)
    took = torch.tensor([time.perf_counter() - wall_s, time.process_time() - cpu_s])
    took = took.double().to(tensor.device)
    slowest, total = took.clone(), took.clone()
    dist.all_reduce(slowest, dist.ReduceOp.MAX, group)
    dist.all_reduce(total, group=group)
    return Cost(slowest[0].item(), total[1].item())


def _finish(tensor: Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)
