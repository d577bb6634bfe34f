"""Cores, memory, shared memory, and what a container leaves of them."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from helpers.doctor.row import NOTE, OK, Row

GB = 10**9
#: The book's largest models and four ranks with PyTorch need about this much.
ENOUGH_MEMORY_BYTES = 4 * GB
ENOUGH_SHM_BYTES = GB


@dataclass(frozen=True)
class Machine:
    """What was read. A limit of None: there is none, or this system does not tell."""

    cores: int
    core_limit: float | None
    memory_bytes: int | None
    memory_limit_bytes: int | None
    shm_bytes: int | None
    memlock_bytes: int | None
    omp_threads: str | None


def read_machine(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> Machine:
    """Return what this system tells, from files below `root`. Local."""
    groups = root / "sys/fs/cgroup"
    return Machine(
        cores=_cores(),
        core_limit=_core_limit(groups),
        memory_bytes=_memory_bytes(root / "proc/meminfo"),
        memory_limit_bytes=_number(groups / "memory.max")
        or _number(groups / "memory/memory.limit_in_bytes"),
        shm_bytes=_shm_bytes(root / "dev/shm"),
        memlock_bytes=_memlock_bytes(),
        omp_threads=environment.get("OMP_NUM_THREADS"),
    )


def machine_rows(machine: Machine, num_gpus: int) -> list[Row]:
    """Return a row each for cores, threads, memory, shared memory and locked memory. Local."""
    return [
        _row_of_cores(machine),
        _row_of_threads(machine),
        _row_of_memory(machine),
        _row_of_shm(machine),
        _row_of_memlock(machine, num_gpus),
    ]


def _row_of_cores(machine: Machine) -> Row:
    limit = machine.core_limit
    if limit is None or limit >= machine.cores:
        return Row("cores", f"{machine.cores}")
    advice = (
        f"a container limits this process to {limit:g} of them, and libraries count all: set "
        f"OMP_NUM_THREADS={max(1, int(limit))}, or give the container more"
    )
    return Row("cores", f"{machine.cores}, of which {limit:g} may be used", NOTE, advice)


def _row_of_threads(machine: Machine) -> Row:
    found = machine.omp_threads
    if found is None:
        return Row("threads", "OMP_NUM_THREADS is not set: each launch divides the cores by ranks")
    if not found.isdecimal() or not 1 <= int(found) <= machine.cores:
        advice = f"expected a number from 1 to {machine.cores}; `unset OMP_NUM_THREADS` is best"
        return Row("threads", f"OMP_NUM_THREADS is {found!r}", NOTE, advice)
    return Row("threads", f"OMP_NUM_THREADS is {found}, on every rank")


def _row_of_memory(machine: Machine) -> Row:
    sizes = [size for size in (machine.memory_bytes, machine.memory_limit_bytes) if size]
    if not sizes:
        return Row("memory", "unknown")
    found = f"{min(sizes) / GB:.1f} GB"
    if min(sizes) >= ENOUGH_MEMORY_BYTES:
        return Row("memory", found)
    advice = "chapters with four ranks may be killed (SIGKILL): close other programs, or lift the "
    return Row("memory", found, NOTE, advice + "container's limit (docker run --memory)")


def _row_of_shm(machine: Machine) -> Row:
    if machine.shm_bytes is None:
        return Row("shared memory", "no /dev/shm on this system")
    found = f"{machine.shm_bytes / GB:.2f} GB in /dev/shm"
    if machine.shm_bytes >= ENOUGH_SHM_BYTES:
        return Row("shared memory", found)
    advice = "workers of a DataLoader and NCCL fail with a bus error when it is full: docker run "
    return Row("shared memory", found, NOTE, advice + "--shm-size=8g, or --ipc=host")


def _row_of_memlock(machine: Machine, num_gpus: int) -> Row:
    if machine.memlock_bytes is None:
        return Row("locked memory", "no limit")
    verdict = NOTE if num_gpus else OK
    advice = "NCCL on InfiniBand wants none: ulimit -l unlimited, or docker run --ulimit memlock=-1"
    found = f"at most {machine.memlock_bytes / GB:.3f} GB a process"
    return Row("locked memory", found, verdict, advice if num_gpus else "")


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _core_limit(groups: Path) -> float | None:
    """cgroup version 2 first: "max 100000" or "150000 100000"; then version 1."""
    words = _text(groups / "cpu.max").split()
    if len(words) == 2:
        return int(words[0]) / int(words[1]) if words[0] != "max" else None
    quota, period = (_number(groups / "cpu" / f"cpu.cfs_{x}_us") for x in ("quota", "period"))
    return quota / period if quota and period and quota > 0 else None


def _memory_bytes(meminfo: Path) -> int | None:
    for line in _text(meminfo).splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return 1024 * int(rest.split()[0])
    return None


def _shm_bytes(path: Path) -> int | None:
    return shutil.disk_usage(path).free if path.is_dir() else None


def _memlock_bytes() -> int | None:
    try:
        import resource
    except ImportError:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.lstrip("-").isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
