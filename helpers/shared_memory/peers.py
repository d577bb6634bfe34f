"""The ranks of one host that share memory: each other's blocks, and pipes to meet through."""

import os
import platform
import select
import struct
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist

from helpers import host_memory

#: What a rank says when it meets the others: three numbers.
RECORD = struct.Struct("=qqq")
Record = tuple[int, int, int]

#: Whether a pipe has an address without a name in a file system (Linux).
HAS_PROC = Path("/proc/self/fd").exists()


@dataclass
class Inbox:
    """A pipe into this rank: its reading end, its address, and what it takes to open it."""

    fd: int
    address: str
    spare_fds: list[int] = field(default_factory=list)

    def opened(self) -> None:
        """The other rank has opened it: from now on it alone holds the end that writes."""
        while self.spare_fds:
            os.close(self.spare_fds.pop())
        if not self.address.startswith("/proc"):
            Path(self.address).unlink(missing_ok=True)

    def close(self) -> None:
        self.opened()
        os.close(self.fd)


def _inbox() -> Inbox:
    if HAS_PROC:
        read_fd, write_fd = os.pipe()
        return Inbox(read_fd, f"/proc/{os.getpid()}/fd/{read_fd}", [write_fd])
    # macOS has no such names: a pipe in the file system, for as long as it is being opened.
    path = f"{tempfile.gettempdir()}/many-gpus-{uuid.uuid4().hex}"
    os.mkfifo(path, 0o600)
    read_fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    return Inbox(read_fd, path, [os.open(path, os.O_WRONLY)])


def host_name() -> str:
    """What tells this host from others: containers and network namespaces count as hosts. Local."""
    name = [platform.node()]
    for path in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid", "/proc/self/ns/net"):
        if os.path.islink(path):
            name.append(os.readlink(path))
        elif os.path.exists(path):
            name.append(Path(path).read_text().strip())
    return " ".join(name)


class Peers:
    """This rank among the ranks of one host: a block of bytes of each, and `meet`.

    `areas`: the blocks by rank, uint8 tensors of `num_bytes`; each rank writes into its own only.
    A pipe is what makes them safe to read: what a rank wrote before it wrote to a pipe is seen by
    whoever has read from that pipe, on every kind of processor, since both take the pipe's lock
    in the kernel. A rank that waits sleeps in the kernel; one that dies closes its pipes.

    Every rank must open this. Raises RuntimeError where ranks are on different hosts.
    """

    def __init__(self, group: dist.ProcessGroup | None, num_bytes: int, timeout_s: float) -> None:
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)
        others = [rank for rank in range(self.world_size) if rank != self.rank]
        self._inbox = {rank: _inbox() for rank in others}
        self._outbox: dict[int, int] = {}
        self.areas: list[torch.Tensor] = []
        self._blocks = {self.rank: host_memory.share(num_bytes)}
        try:
            self._open(self._exchange(group), num_bytes)
            self.meet((0, 0, 0), timeout_s)  # now all have opened what is ours
        except BaseException:
            self.close()
            raise
        for inbox in self._inbox.values():
            inbox.opened()

    def _exchange(self, group: dist.ProcessGroup | None) -> list[tuple]:
        addresses = {rank: inbox.address for rank, inbox in self._inbox.items()}
        offer = (host_name(), self._blocks[self.rank].address, addresses)
        offered = [None] * self.world_size
        dist.all_gather_object(offered, offer, group=group)
        for rank, (host, _, _) in enumerate(offered):
            if host != offered[0][0]:
                raise RuntimeError(
                    f"shared memory needs ranks of one host: rank {rank} is on {host}, "
                    f"rank 0 on {offered[0][0]}"
                )
        return offered

    def _open(self, offered: list[tuple], num_bytes: int) -> None:
        for rank in self._inbox:
            _, memory, pipes = offered[rank]
            self._blocks[rank] = host_memory.attach(memory, num_bytes)
            self._outbox[rank] = os.open(pipes[self.rank], os.O_WRONLY | os.O_CLOEXEC)
        self.areas = [
            torch.frombuffer(self._blocks[rank].buffer, dtype=torch.uint8)
            for rank in range(self.world_size)
        ]

    def meet(self, says: Record, timeout_s: float) -> list[Record]:
        """Return what each rank said, once all have said it. Every rank must call this.

        What a rank wrote into its block before it met the others, they may read after.
        Raises RuntimeError that names the ranks which are gone, or late by `timeout_s`.
        """
        for rank, fd in self._outbox.items():
            try:
                os.write(fd, RECORD.pack(*says))  # so short that a pipe takes it whole
            except BrokenPipeError:
                raise _gone(rank) from None
        said = {self.rank: says}
        for rank in self._as_they_come(time.monotonic() + timeout_s):
            said[rank] = self._read(rank)
        if missing := [str(rank) for rank in range(self.world_size) if rank not in said]:
            raise RuntimeError(
                f"all-reduce through shared memory timed out: after {timeout_s:g} s, "
                f"rank {', '.join(missing)} had not joined"
            )
        return [said[rank] for rank in range(self.world_size)]

    def _as_they_come(self, deadline_s: float) -> Iterator[int]:
        """Yield each other rank when it has something to say, until the deadline."""
        poll, waiting = select.poll(), {}
        for rank, inbox in self._inbox.items():
            poll.register(inbox.fd, select.POLLIN)
            waiting[inbox.fd] = rank
        while waiting and (left_s := deadline_s - time.monotonic()) > 0:
            for fd, _ in poll.poll(1e3 * left_s):
                poll.unregister(fd)
                yield waiting.pop(fd)

    def _read(self, rank: int) -> Record:
        record = os.read(self._inbox[rank].fd, RECORD.size)
        if not record:
            raise _gone(rank)
        return RECORD.unpack(record)

    def close(self) -> None:
        """Give pipes and memory back. Local."""
        for fd in self._outbox.values():
            os.close(fd)
        for inbox in self._inbox.values():
            inbox.close()
        for block in self._blocks.values():
            block.close()
        self._outbox, self._inbox, self._blocks, self.areas = {}, {}, {}, []


def _gone(rank: int) -> RuntimeError:
    return RuntimeError(f"all-reduce through shared memory: rank {rank} has gone")
