"""Start and stop a process group; choose its backend and each rank's device."""

import gc
import itertools
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from helpers.background import settle
from helpers.link import Link, opened

#: What torchrun tells each process; all of them, or none for a world of one.
TORCHRUN_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)
BACKENDS = ("gloo", "nccl")

_openings = itertools.count()
_stores: dict[tuple[str, ...], dist.Store] = {}  # one per rendezvous, kept for later openings
# The group closed last, kept until the next one closes, where torch's DistributedDataParallel has
# used it and lives on. Freeing a group joins its threads; that class's reducer would do so while it
# holds Python's lock, and hang if one of them still needs the lock to let go of its last message.
# Any other group is freed at once: only then do its peers see that this rank has left.
_closed: list[dist.ProcessGroup] = []


@dataclass(frozen=True)
class Ranks:
    """Where this process stands: its rank among `world_size`, and the device that it uses."""

    rank: int
    local_rank: int
    world_size: int
    device: torch.device
    backend: str


@contextmanager
def process_group(*, backend: str | Link | None = None, timeout_s: float = 30.0) -> Iterator[Ranks]:
    """Open the default process group, yield this process's `Ranks`, close it at the end.

    Every rank must call this, equally often: each opening takes a store prefix of its own,
    so that groups may follow one another in one job.

    `backend`: None picks "cpu:gloo,cuda:nccl" where each process of this host has a GPU of
    its own, and "gloo" on the CPU elsewhere; "gloo" and "nccl" are taken as said. A
    `helpers.link.Link` is an emulated interconnect: gloo on the CPU, in that link's time; all
    ranks must name an equal one and be on one host.
    `timeout_s`: how long a collective waits for the other ranks. The default of 30 s is long
    enough for a slow start and short enough to wait for at a desk (torch's own is 30 min).

    Without torchrun's variables the world is this process alone, and a hint says so.
    Raises RuntimeError: inside an open group; when torchrun's variables are set only in part or
    contradict each other; for "nccl" with fewer GPUs than local ranks. ValueError: an unknown
    backend, a timeout that is not positive. A rank that never opens makes the others raise after
    `timeout_s`.

    Source: torch.distributed, "Initialization". Built in chapter 01.
    """
    _check_arguments(backend, timeout_s)
    rank, world_size, local_rank, local_world_size = _read_environment()
    backend, device = _choose(backend, local_rank, local_world_size)
    timeout = timedelta(seconds=timeout_s)
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    with ExitStack() as resources:
        if isinstance(backend, Link):
            backend = resources.enter_context(opened(backend))
        dist.init_process_group(
            backend,
            store=dist.PrefixStore(f"opening {next(_openings)}", _store(world_size, timeout)),
            rank=rank,
            world_size=world_size,
            timeout=timeout,
            # For both backends together NCCL starts with the first CUDA tensor, not here: most
            # cells send CPU tensors only, and some wait for each other for a few seconds only.
            device_id=device if backend == "nccl" else None,
        )
        resources.push(_close_on_gpu if on_gpu else _close)
        yield Ranks(rank, local_rank, world_size, device, backend)


def _close(error: type[BaseException] | None, *_: object) -> None:
    if error is None:
        settle()  # what is still under way, and nobody has waited for
    if dist.is_initialized():
        _closed[:] = [dist.group.WORLD] if _has_reducer(dist.group.WORLD) else []
        dist.destroy_process_group()


def _close_on_gpu(error: type[BaseException] | None, *_: object) -> None:
    """Close; after an error without what is queued, which may wait for a peer that never comes."""
    if error is not None and dist.is_initialized():
        dist.group.WORLD.abort()
    _close(error)


def _has_reducer(group: dist.ProcessGroup) -> bool:
    """Whether an instance of torch's DistributedDataParallel holds the group."""
    if "torch._dynamo" not in sys.modules:  # its constructor imports it
        return False
    holders = gc.get_referrers(group)
    return any(
        "reducer" in (x if isinstance(x, dict) else getattr(x, "__dict__", ())) for x in holders
    )


def _check_arguments(backend: str | Link | None, timeout_s: float) -> None:
    if dist.is_initialized():
        raise RuntimeError(
            "a process group is open already: close it (leave its `with` block) before the next"
        )
    if not (backend is None or isinstance(backend, Link) or backend in BACKENDS):
        raise ValueError(
            f"unknown backend {backend!r}; expected None, one of {BACKENDS} or a helpers.link.Link"
        )
    if not 0 < timeout_s < 1e6:
        raise ValueError(f"timeout_s is {timeout_s!r}; expected seconds, more than 0 and finite")


def _read_environment() -> tuple[int, int, int, int]:
    """(rank, world size, local rank, local world size) from torchrun's variables."""
    missing = [name for name in TORCHRUN_VARIABLES if not os.environ.get(name)]
    if len(missing) == len(TORCHRUN_VARIABLES):
        print(
            "one process, rank 0 of 1 (for more: torchrun --nproc-per-node 2 SCRIPT)",
            file=sys.stderr,
        )
        return 0, 1, 0, 1
    if missing:
        found = [name for name in TORCHRUN_VARIABLES if name not in missing]
        raise RuntimeError(
            f"{', '.join(found)} set, but not {', '.join(missing)}: start the script with "
            "torchrun, which sets all of them, or set none for a world of one"
        )
    return _numbers("RANK", "WORLD_SIZE") + _numbers("LOCAL_RANK", "LOCAL_WORLD_SIZE")


def _numbers(rank_name: str, size_name: str) -> tuple[int, int]:
    found = os.environ[rank_name], os.environ[size_name]
    if not all(value.isdecimal() for value in found) or int(found[0]) >= int(found[1]):
        raise RuntimeError(
            f"{rank_name} is {found[0]!r} and {size_name} is {found[1]!r}; "
            "expected two numbers, the first below the second"
        )
    return int(found[0]), int(found[1])


def _choose(
    backend: str | Link | None, local_rank: int, local_world_size: int
) -> tuple[str | Link, torch.device]:
    if isinstance(backend, Link):
        return backend, torch.device("cpu")
    # Ranks of one host share its GPUs, so the local world size is what counts.
    num_gpus = torch.cuda.device_count()
    enough_gpus = num_gpus >= local_world_size
    if backend == "nccl" and not enough_gpus:
        raise RuntimeError(
            f"nccl needs a GPU for each rank: found {num_gpus} for {local_world_size} "
            "ranks on this host; use fewer ranks, or backend=None for gloo on the CPU"
        )
    if backend == "gloo" or not enough_gpus:
        if num_gpus and backend is None and local_rank == 0:
            print(
                f"{num_gpus} GPU{'s' * (num_gpus > 1)} for {local_world_size} ranks: "
                "using gloo on the CPU",
                file=sys.stderr,
            )
        return "gloo", torch.device("cpu")
    return backend or "cpu:gloo,cuda:nccl", torch.device("cuda", local_rank)


def _store(world_size: int, timeout: timedelta) -> dist.Store:
    """The store of this job; kept, since its host can listen on MASTER_PORT only once."""
    if not os.environ.get("MASTER_ADDR"):
        return dist.HashStore()
    key = tuple(os.environ.get(name, "") for name in (*TORCHRUN_VARIABLES, "TORCHELASTIC_RUN_ID"))
    if key not in _stores:
        _stores[key], _, _ = next(dist.rendezvous("env://", timeout=timeout))
    return _stores[key]
