"""Checks of chapter 11: a hook for communication, and batches as long as every rank has one."""

import time
from collections.abc import Callable, Iterable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from helpers import problems
from helpers.data_parallel import DistributedDataParallel
from helpers.exercises.checking import Wrong, exercise, expect_close
from helpers.link import Link
from helpers.process_group import Ranks, process_group
from helpers.traffic import count_traffic

TIMEOUT_S = 4.0
TOLERANCE = 2e-3  # float16 keeps 11 bits; a sum of four rounds a few times
SLOW_LINK = Link(0.15, 10.0)  # a message takes 150 ms, so a hook that waits for it is seen
NUM_GRADIENTS = 64
COUNTS = ((2, 3, 5, 4), (3, 1, 2, 2), (2, 0, 1, 3), (1, 1, 1, 1))  # batches of each rank


@exercise("11-half", ranks=True)
def half(half_hook: Callable) -> None:
    """half_hook(group, bucket) -> Future of the mean, sent as float16, at once. Every rank."""
    with process_group(backend=SLOW_LINK, timeout_s=TIMEOUT_S) as ranks:
        group = dist.group.WORLD
        for largest in (1.0, 5e4):
            mine, mean = _numbers(ranks, largest)
            with count_traffic() as traffic:
                value = _mean_by(half_hook, group, mine)
            expect_close(value, mean, f"of gradients up to {largest:g}, the mean", TOLERANCE)
            _expect_one_message(traffic)
        if ranks.world_size > 1:
            _expect_mean_of_a_group(ranks, half_hook)
    with process_group(backend="gloo", timeout_s=TIMEOUT_S) as ranks:
        _expect_gradients(ranks, half_hook)


class _Bucket:
    """One bucket of gradients, as a hook is given it."""

    def __init__(self, buffer: Tensor):
        self._buffer = buffer

    def buffer(self) -> Tensor:
        return self._buffer

    def set_buffer(self, buffer: Tensor) -> None:
        self._buffer = buffer

    def gradients(self) -> list[Tensor]:
        return [self._buffer]

    def parameters(self) -> list[Tensor]:
        return [torch.zeros_like(self._buffer)]

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True


def _numbers(ranks: Ranks, largest: float) -> tuple[Tensor, Tensor]:
    """This rank's gradients, the last rank's up to `largest`, and their mean over the ranks."""
    places = torch.linspace(-largest, largest, NUM_GRADIENTS)
    n = ranks.world_size
    return places * ((1 + ranks.rank) / n), places * ((n + 1) / (2 * n))


def _mean_by(hook: Callable, group: dist.ProcessGroup, gradients: Tensor) -> Tensor:
    """What the hook's future holds; Wrong where it waits for it, or gives something else."""
    begin_s = time.perf_counter()
    future = hook(group, _Bucket(gradients))
    took_s = time.perf_counter() - begin_s
    if not callable(getattr(future, "wait", None)):
        raise Wrong(f"the hook returns {type(future).__name__}, expected a Future")
    value = future.wait()
    value = value[0] if isinstance(value, list | tuple) else value
    if not isinstance(value, Tensor) or value.dtype != torch.float32:
        found = getattr(value, "dtype", type(value).__name__)
        raise Wrong(f"the future holds {found}, expected torch.float32")
    if group.size() > 1 and took_s > SLOW_LINK.latency_s / 2:
        raise Wrong(f"the hook came back after {1e3 * took_s:.0f} ms, expected at once")
    return value


def _expect_one_message(traffic) -> None:
    called = {name: n for name, n in traffic.collectives.items() if n and name != "barrier"}
    size_bytes = 2 * NUM_GRADIENTS
    if called != {"all_reduce": 1} or traffic.payload_bytes != size_bytes:
        raise Wrong(
            f"collectives {called} of {traffic.payload_bytes} bytes in all, "
            f"expected one all_reduce of {size_bytes}"
        )


def _expect_mean_of_a_group(ranks: Ranks, hook: Callable) -> None:
    """The mean within groups smaller than the world: 0 and 1, 2 and 3; of two, one alone."""
    size = ranks.world_size // 2
    parts = [list(range(i, i + size)) for i in range(0, ranks.world_size, size)]
    groups = [dist.new_group(part) for part in parts]
    own = ranks.rank // size
    value = _mean_by(hook, groups[own], torch.full((NUM_GRADIENTS,), float(ranks.rank)))
    expected = torch.full((NUM_GRADIENTS,), sum(parts[own]) / size)
    expect_close(value, expected, f"in a group of {size} of {ranks.world_size} ranks, the mean")


def _expect_gradients(ranks: Ranks, hook: Callable) -> None:
    """A model with the hook has the gradients of one without, but for float16's rounding."""
    batch = tuple(x[:32] for x in problems.digits().train)
    shard = problems.split(batch, ranks.rank, ranks.world_size)
    found = []
    for each in (None, hook):
        model = DistributedDataParallel(problems.make_mlp((64, 16, 10)))
        if each is not None:
            model.register_comm_hook(dist.group.WORLD, each)
        (problems.classification_loss_sum(model, shard) / 8).backward()
        found.append([param.grad for param in model.parameters()])
    for index, (right, grad) in enumerate(zip(*found, strict=True)):
        expect_close(grad, right, f"in a model, gradient {index}", 10 * TOLERANCE)


@exercise("11-uneven", ranks=True)
def uneven(while_all_have: Callable[[Iterable], Iterator]) -> None:
    """while_all_have(batches): yields this rank's as long as every rank has one. Every rank."""
    with process_group(backend="gloo", timeout_s=TIMEOUT_S) as ranks:
        for counts in COUNTS:
            counts = counts[: ranks.world_size]
            with count_traffic() as traffic:
                found = list(while_all_have(iter(range(counts[ranks.rank]))))
            least = min(counts)
            if found != list(range(least)):
                raise Wrong(f"of {counts} batches: yields {found}, expected {list(range(least))}")
            called = sum(traffic.collectives.values())
            if called > least + 1:
                raise Wrong(
                    f"of {counts} batches: {called} collectives, expected {least + 1} at most"
                )
            dist.barrier()
