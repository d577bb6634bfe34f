"""What each rank does: every algorithm on every size, checked, then timed in turns."""

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from helpers import collectives, cost_model, shared_memory
from helpers.link import late, link_of
from helpers.process_group import Ranks, process_group

from .arguments import AUTO, SHARED_MEMORY, TORCH, Settings

#: Small tensors are reduced several times a round, as nccl-tests does: one is over too soon.
ROUND_BYTES, MAX_CALLS = 1 << 18, 10


@dataclass(frozen=True)
class Row:
    """One algorithm on one size: seconds of one call by round, of the slowest rank.

    `cpu_s`: CPU seconds of one call, all threads of all ranks together.
    `predicted_s`: what the emulated link asks for; None on a real one.
    """

    world_size: int
    size_bytes: int
    algorithm: str
    seconds: tuple[float, ...]
    cpu_s: tuple[float, ...]
    predicted_s: float | None

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)

    def quantile_s(self, q: float) -> float:
        """Between the two nearest rounds, as numpy.quantile does by default. Local."""
        return torch.tensor(self.seconds, dtype=torch.float64).quantile(q).item()

    @property
    def median_cpu_s(self) -> float:
        return statistics.median(self.cpu_s)


@dataclass(frozen=True)
class World:
    """All rows of one number of ranks, and what they ran on."""

    world_size: int
    backend: str
    device: str
    rows: tuple[Row, ...]
    num_late: int = 0
    left_out: str = ""


def measure_world(settings: Settings, tick: Callable[[], None]) -> World:
    """Open a process group and measure all. Every rank must call this; all return the same.

    `tick()` is called after each round. Raises RuntimeError on every rank for a wrong sum,
    naming algorithm, size, ranks.
    """
    with process_group(backend=settings.link, timeout_s=settings.timeout_s) as ranks:
        on_gpu = ranks.device.type == "cuda"
        is_shared = not on_gpu and int(os.environ["LOCAL_WORLD_SIZE"]) == ranks.world_size
        names = [name for name in settings.algorithms if is_shared or name != SHARED_MEMORY]
        rows = []
        for size_bytes in settings.sizes_bytes:
            rows += _measure_size(settings, ranks, names, size_bytes, tick)
        num_late = _total(late()) if settings.link else 0
        device = torch.cuda.get_device_name(ranks.device) if on_gpu else "cpu"
        left_out = "" if len(names) == len(settings.algorithms) else SHARED_MEMORY
        backend = "nccl" if on_gpu else "gloo"
        return World(ranks.world_size, backend, device, tuple(rows), num_late, left_out)


def num_rounds(settings: Settings) -> int:
    """How often `measure_world` ticks. Local."""
    return len(settings.sizes_bytes) * (settings.warmup + settings.repeat)


def call_of(name: str) -> Callable[[Tensor], object]:
    """Return the function that reduces a tensor in place by the algorithm of this name. Local."""
    if name == TORCH:
        return dist.all_reduce
    if name == SHARED_MEMORY:
        return shared_memory.all_reduce
    return lambda tensor: collectives.all_reduce(tensor, algorithm=name)


def _measure_size(
    settings: Settings, ranks: Ranks, names: list[str], size_bytes: int, tick: Callable[[], None]
) -> list[Row]:
    dtype = getattr(torch, settings.dtype)
    length = size_bytes // dtype.itemsize
    for name in names:
        _check_values(name, length, dtype, ranks)
    tensor = torch.zeros(length, dtype=dtype, device=ranks.device)  # which no sum makes overflow
    num_calls = min(MAX_CALLS, max(1, ROUND_BYTES // size_bytes)) if not settings.link else 1
    samples = {name: [] for name in names}
    for index in range(settings.warmup + settings.repeat):
        # Forwards and backwards, so that a machine that slows down slows all of them down.
        for name in names if index % 2 else reversed(names):
            samples[name].append(_time(call_of(name), tensor, num_calls))
        tick()
    gathered = [None] * ranks.world_size
    dist.all_gather_object(gathered, samples)
    return [
        _row(settings, ranks, name, size_bytes, [by_name[name] for by_name in gathered])
        for name in names
    ]


def _row(settings: Settings, ranks: Ranks, name: str, size_bytes: int, by_rank: list) -> Row:
    rounds = list(zip(*by_rank, strict=True))[settings.warmup :]
    seconds = tuple(max(wall_s for wall_s, _ in of_ranks) for of_ranks in rounds)
    cpu_s = tuple(sum(cpu_s for _, cpu_s in of_ranks) for of_ranks in rounds)
    predicted_s = predict_s(name, size_bytes, ranks.world_size) if settings.link else None
    return Row(ranks.world_size, size_bytes, name, seconds, cpu_s, predicted_s)


def predict_s(name: str, size_bytes: int, world_size: int) -> float:
    """Return what the open link asks for an all-reduce by this algorithm. Local."""
    link = link_of()
    if name == TORCH:
        return link.ring_s(size_bytes, world_size)
    if name == AUTO:
        name = cost_model.choose(size_bytes, world_size, link)
    return cost_model.all_reduce_s(name, size_bytes, world_size, link)


def _time(call: Callable[[Tensor], object], tensor: Tensor, num_calls: int) -> tuple[float, float]:
    """Wall and CPU seconds of one call on this rank, from when all ranks were ready."""
    dist.barrier()
    _synchronize(tensor)
    start_s, cpu_start_s = time.perf_counter(), time.process_time()
    for _ in range(num_calls):
        call(tensor)
    _synchronize(tensor)
    wall_s, cpu_s = time.perf_counter() - start_s, time.process_time() - cpu_start_s
    return wall_s / num_calls, cpu_s / num_calls


def _synchronize(tensor: Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)


def _check_values(name: str, length: int, dtype: torch.dtype, ranks: Ranks) -> None:
    """All-reduce small whole numbers, exact in every dtype, which differ by place and rank."""
    places = torch.arange(length, device=ranks.device) % 13
    tensor = (places + ranks.rank % 5).to(dtype)
    call_of(name)(tensor)
    right = ranks.world_size * places + sum(rank % 5 for rank in range(ranks.world_size))
    num_wrong = (tensor != right.to(dtype)).sum().item()
    found = [None] * ranks.world_size
    dist.all_gather_object(found, num_wrong)
    if any(found):
        wrong = [f"{count} on rank {rank}" for rank, count in enumerate(found) if count]
        raise RuntimeError(
            f"{name} on {ranks.world_size} ranks sums {length} x {dtype} wrongly: "
            f"found wrong numbers, {', '.join(wrong)}, expected none"
        )


def _total(count: int) -> int:
    counts = [None] * dist.get_world_size()
    dist.all_gather_object(counts, count)
    return sum(counts)
