"""Memory, shared memory, and how much of it may be locked in place."""

import os
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from . import cgroup
from .ask import limit_of, text_of
from .row import BAD, WARN, Row

TOPIC = "memory"
GIB, MIB = 2**30, 2**20
#: Four ranks of 0.3 GB, their parent and a notebook's kernel.
LEAST_BYTES = 2 * GIB
#: docker gives 64 MiB unless told otherwise, and a batch of images from each of a few workers
#: fills them.
LEAST_SHM_BYTES, LEAST_FREE_SHM_BYTES = 256 * MIB, 16 * MIB


@dataclass(frozen=True)
class Memory:
    """Bytes. None: not known, or for a limit and memlock: none set. `shm_bytes` and
    `shm_free_bytes` None: there is no /dev/shm. `temporary_trouble`: why no temporary file can be
    written, "" where one can."""

    total_bytes: int | None = None
    available_bytes: int | None = None
    limit_bytes: int | None = None
    limit_used_bytes: int | None = None
    shm_bytes: int | None = None
    shm_free_bytes: int | None = None
    memlock_bytes: int | None = None
    is_shm_writable: bool = True
    temporary_trouble: str = ""
    is_linux: bool = True
    has_infiniband: bool = False


def read(shm: str = "/dev/shm") -> Memory:
    """Read it from this machine. Local."""
    limits = cgroup.read()
    info = text_of("/proc/meminfo")
    shm_bytes, shm_free_bytes = _file_system(shm)
    return Memory(
        total_bytes=_line(info, "MemTotal") or _pages(),
        available_bytes=_line(info, "MemAvailable"),
        limit_bytes=limits.memory_bytes,
        limit_used_bytes=limits.used_bytes,
        shm_bytes=shm_bytes,
        shm_free_bytes=shm_free_bytes,
        memlock_bytes=limit_of("RLIMIT_MEMLOCK"),
        is_shm_writable=os.access(shm, os.W_OK),
        temporary_trouble=_temporary_trouble(),
        is_linux=sys.platform.startswith("linux"),
        has_infiniband=_has_entries("/sys/class/infiniband"),
    )


def rows(memory: Memory, num_gpus: int) -> list[Row]:
    """The findings. Local."""
    return [
        _total(memory),
        _limit(memory),
        _shm(memory),
        _temporary(memory),
        _memlock_row(memory, num_gpus),
    ]


def _total(memory: Memory) -> Row:
    if memory.total_bytes is None:
        return Row(TOPIC, "memory", "not known here")
    free = memory.available_bytes
    found = f"{_words(memory.total_bytes)}" + (f", {_words(free)} available" if free else "")
    if (memory.total_bytes if free is None else free) < LEAST_BYTES:
        return Row(TOPIC, "memory", found, WARN, ("little_memory",))
    return Row(TOPIC, "memory", found)


def _limit(memory: Memory) -> Row:
    limit = memory.limit_bytes
    if limit is None or (memory.total_bytes and limit >= memory.total_bytes):
        return Row(TOPIC, "container's limit", "none")
    used = memory.limit_used_bytes or 0
    found = f"{_words(limit)}, {_words(used)} of it used"
    if limit - used < LEAST_BYTES:
        return Row(TOPIC, "container's limit", found, WARN, ("memory_limit", "little_memory"))
    return Row(TOPIC, "container's limit", found)


def _shm(memory: Memory) -> Row:
    if not memory.is_linux:
        return Row(TOPIC, "/dev/shm", "not used on this system")
    if memory.shm_bytes is None:
        return Row(TOPIC, "/dev/shm", "absent", BAD, ("shm",))
    free = memory.shm_free_bytes or 0
    found = f"{_words(memory.shm_bytes)}, {_words(free)} free"
    if not memory.is_shm_writable:
        return Row(TOPIC, "/dev/shm", f"{found}, but not to be written", BAD, ("shm_closed",))
    if free < LEAST_FREE_SHM_BYTES:
        return Row(TOPIC, "/dev/shm", found, BAD, ("shm",))
    if free < LEAST_SHM_BYTES:
        return Row(TOPIC, "/dev/shm", found, WARN, ("shm",))
    return Row(TOPIC, "/dev/shm", found)


def _temporary(memory: Memory) -> Row:
    if memory.temporary_trouble:
        return Row(TOPIC, "temporary files", memory.temporary_trouble, BAD, ("no_temporary",))
    return Row(TOPIC, "temporary files", "can be written")


def _memlock_row(memory: Memory, num_gpus: int) -> Row:
    """Only NCCL over cards of InfiniBand locks more than the usual limits allow."""
    limit = memory.memlock_bytes
    if limit is None:
        return Row(TOPIC, "locked memory", "no limit")
    found = f"at most {_words(limit)}"
    if num_gpus and memory.has_infiniband:
        return Row(TOPIC, "locked memory", f"{found}, with InfiniBand", WARN, ("memlock",))
    return Row(TOPIC, "locked memory", f"{found}; enough without GPUs on InfiniBand")


def _line(text: str, name: str) -> int | None:
    found = re.search(rf"^{name}:\s+(\d+) kB", text, re.M)
    return int(found[1]) * 1024 if found else None


def _pages() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _file_system(path: str) -> tuple[int | None, int | None]:
    try:
        found = os.statvfs(path)
    except (AttributeError, OSError):
        return None, None
    return found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail


def _temporary_trouble() -> str:
    """As much as the launcher's answers of a few ranks take is written, and gone at once."""
    try:
        with tempfile.TemporaryFile(buffering=0) as file:
            is_whole = file.write(bytes(MIB)) == MIB
        return "" if is_whole else "no MiB fits into the temporary folder"
    except OSError as error:
        return error.strerror or str(error)


def _has_entries(folder: str) -> bool:
    try:
        return any(Path(folder).iterdir())
    except OSError:
        return False


def _words(num_bytes: int) -> str:
    if num_bytes >= GIB:
        return f"{num_bytes / GIB:.1f} GiB"
    return f"{num_bytes / MIB:.0f} MiB" if num_bytes >= MIB else f"{num_bytes / 1024:.0f} KiB"
