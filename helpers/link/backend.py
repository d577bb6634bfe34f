"""The emulated link as a backend of torch.distributed, registered by name."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from helpers import host_memory
from helpers.link import record
from helpers.link.group import NAME, Job, LinkGroup
from helpers.link.model import Link
from helpers.link.schedule import Schedule

_job: Job | None = None


@contextmanager
def opened(link: Link) -> Iterator[str]:
    """Yield the name of a backend that runs on `link`; open and close process groups inside.

    For those who call dist.init_process_group themselves; `process_group(backend=link)` does
    this already. Every rank must open an equal link, and all ranks must be on one host.
    Raises RuntimeError where a link is open already; a group that is made inside raises
    ValueError on every rank where one has opened another link.
    """
    global _job
    if _job is not None:
        raise RuntimeError(f"found an open link ({_job.link}), expected none")
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])
    record.clear()
    job = _job = Job(link)
    try:
        yield NAME
    except BaseException:
        job.close(limit_s=0.0)  # an error is told at once, before the others have lost this rank
        raise
    finally:
        _job = None
        job.close()


def link_of(group: dist.ProcessGroup | None = None) -> Link | None:
    """Return the emulated link that this group (None: the default one) runs on, or None. Local."""
    group = dist.group.WORLD if group is None else group
    return group.link if isinstance(group, LinkGroup) else None


def _create(options: object, _backend_options: object) -> LinkGroup:
    """What torch calls on every rank of a new group."""
    if _job is None:
        raise RuntimeError("no link is open: use process_group(backend=Link(...))")
    store, rank, size = options.store, options.group_rank, options.group_size
    ranks = list(options.global_ranks_in_group)
    if not ranks:  # the default group: what an earlier one has left unfinished is forgotten
        ranks = list(range(size))
        _job.close()
        _job.num_worlds += 1
        _job.schedule = _shared_schedule(store, rank, size, _job)
    gloo = dist.ProcessGroupGloo(store, rank, size, timeout=options.timeout)
    timeout_s = options.timeout.total_seconds()
    return LinkGroup(_job, options.group_id, rank, ranks, gloo, timeout_s)


def _shared_schedule(store: dist.Store, rank: int, world_size: int, job: Job) -> Schedule:
    """Rank 0 makes the memory of the schedule; the others learn its address from the store.

    Before that it reads what link each has opened. Raises ValueError, the same on every rank,
    where they differ.
    """
    num_bytes, name = Schedule.num_bytes(world_size), f"schedule {job.num_worlds}"
    if rank == 0:
        refused = _odd_link(store, world_size, job.link, name)
        store.set(f"{name}: refused", refused)
        if not refused:
            memory = host_memory.share(num_bytes)
            store.set(name, memory.address)
            return Schedule(memory, world_size)
        for other in range(1, world_size):  # the store may end with this process
            store.get(f"{name}: rank {other} knows")
        raise ValueError(refused)
    store.set(f"{name}: link of rank {rank}", repr(job.link))
    if refused := store.get(f"{name}: refused").decode():
        store.set(f"{name}: rank {rank} knows", "")
        raise ValueError(refused)
    return Schedule(host_memory.attach(store.get(name).decode(), num_bytes), world_size)


def _odd_link(store: dist.Store, world_size: int, link: Link, name: str) -> str:
    """Say on which rank another link than this one is open first; "" where there is none."""
    for rank in range(1, world_size):
        found = store.get(f"{name}: link of rank {rank}").decode()
        if found != repr(link):
            return f"rank {rank} found {found}, expected rank 0's {link!r}"
    return ""
