"""Memory that several processes of one host map, under no name in any file system."""

import fcntl
import mmap
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class SharedMemory:
    """A block of memory that all processes holding its `address` read and write.

    `buffer`: the bytes, a writable mapping (`torch.frombuffer` and `memoryview` take it); None
    once closed.
    `address`: a line of text for the other processes, good until the block is closed here.
    """

    buffer: mmap.mmap | None
    address: str
    _fd: int = field(repr=False)
    _path: str | None = field(default=None, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the block alone among all threads of all processes; freed if one dies. Local.

        Raises RuntimeError once the block is closed.
        """
        with self._lock:  # the file's lock is the process's: it does not tell threads apart
            if self._fd < 0:
                raise RuntimeError("this shared memory is closed")
            fcntl.lockf(self._fd, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Give this process's share back; the memory goes with the last process. Local."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
        if self._path and os.path.exists(self._path):
            os.unlink(self._path)
        # Not unmapped here: a tensor may still look at it, and torch.frombuffer keeps it alive.
        self.buffer = None


def share(num_bytes: int) -> SharedMemory:
    """Return `num_bytes` of new memory, zeros, for other processes to `attach`. Local.

    On Linux the block has no name (memfd_create), so that nothing is left behind even when
    every process is killed. Elsewhere it is a temporary file, removed by `close`.
    Raises ValueError for fewer than one byte, OSError where there is not enough memory.
    Chapter 07's emulated link and helpers.shared_memory stand on it.
    """
    if num_bytes < 1:
        raise ValueError(f"found num_bytes={num_bytes}, expected at least 1")
    path = None
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("many-gpus", os.MFD_CLOEXEC)
        address = f"/proc/{os.getpid()}/fd/{fd}"
    else:
        fd, path = tempfile.mkstemp(prefix="many-gpus-")
        address = path
    try:
        os.ftruncate(fd, num_bytes)
        return SharedMemory(mmap.mmap(fd, num_bytes), address, fd, path)
    except (OSError, ValueError):
        os.close(fd)
        raise


def attach(address: str, num_bytes: int) -> SharedMemory:
    """Return the memory that another process of this host has made with `share`. Local.

    Raises RuntimeError where the address is not to be opened here: another host, another user,
    a process that has ended; or where the block has fewer bytes than asked for.
    """
    try:
        fd = os.open(address, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise RuntimeError(
            f"shared memory {address} cannot be opened ({error.strerror}); expected a block of "
            "a living process of this host and user"
        ) from error
    try:
        found = os.fstat(fd).st_size
        if found < num_bytes:
            raise RuntimeError(
                f"shared memory {address} has {found} bytes, expected at least {num_bytes}"
            )
        return SharedMemory(mmap.mmap(fd, num_bytes), address, fd)
    except BaseException:
        os.close(fd)
        raise
