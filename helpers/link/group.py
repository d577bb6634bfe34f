"""A process group on the emulated link: gloo moves the data, the link decides when it is there."""

import itertools
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch.distributed as dist
from torch import Tensor

from helpers import traffic
from helpers.background import GRACE_S
from helpers.link import record
from helpers.link.model import Link
from helpers.link.operations import COLLECTIVES, num_bytes
from helpers.link.schedule import Operation, Schedule
from helpers.link.work import Crew, LinkWork, sleep_until

NAME = "emulated"
ABORT_S = 1.0  # what is broken off needs no longer to notice


@dataclass
class Job:
    """What all groups of a process share: the link, the ports of all ranks, the threads."""

    link: Link
    schedule: Schedule | None = None
    crew: Crew = field(default_factory=Crew)
    gloos: list[Any] = field(default_factory=list)
    num_worlds: int = 0

    def close(self, limit_s: float = GRACE_S) -> None:
        """Let what is under way be completed, for so long; break off the rest; free the memory."""
        if not self.crew.dismiss(limit_s):
            for gloo in self.gloos:
                gloo.abort()
        if self.schedule is not None:
            self.schedule.close()
        self.crew.dismiss(ABORT_S)
        self.schedule, self.crew, self.gloos = None, Crew(), []


class LinkGroup(dist.ProcessGroup):
    """A process group whose operations run on gloo and complete when the link would have.

    torch.distributed and DDP's reducer call its methods by the names of ProcessGroup; those of
    the collectives are made from COLLECTIVES, below.
    """

    def __init__(
        self, job: Job, name: str, rank: int, ranks: list[int], gloo: Any, timeout_s: float
    ) -> None:
        super().__init__(rank, len(ranks))
        self._name = name
        self.link = job.link
        self._schedule, self._crew = job.schedule, job.crew
        job.gloos.append(gloo)
        self._ranks, self._gloo, self._timeout_s = ranks, gloo, timeout_s
        self._num_collectives = itertools.count()
        self._num_messages: Counter[tuple[int, int, int]] = Counter()

    def getBackendName(self) -> str:
        return NAME

    def getGroupName(self) -> str:
        return self._name

    @property
    def group_name(self) -> str:  # what ProcessGroup has asks a backend that is not there
        return self._name

    def shutdown(self) -> None:
        """Take no more calls; torch calls this when the group is destroyed."""
        self._gloo = None

    def abort(self) -> None:
        self.shutdown()

    def send(self, tensors: list[Tensor], dst: int, tag: int) -> LinkWork:
        posted_s = time.monotonic()
        real = self._gloo.send(tensors, dst, tag)
        message = self._message(self.rank(), dst, tag, num_bytes(tensors))
        return self._start("send", tensors, real, message, posted_s)

    def recv(self, tensors: list[Tensor], src: int, tag: int) -> LinkWork:
        posted_s = time.monotonic()
        real = self._gloo.recv(tensors, src, tag)
        message = self._message(src, self.rank(), tag, num_bytes(tensors))
        # Its room may be larger than what is sent: the sender alone knows the price.
        return self._start("recv", tensors, real, replace(message, cost_s=0.0), posted_s)

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> LinkWork:
        raise NotImplementedError(
            "found a receive from any source, expected one that names its rank: whose port it "
            "takes must be known on the emulated link"
        )

    def _message(self, src: int, dst: int, tag: int, size_bytes: int) -> Operation:
        """The next message from src to dst under this tag, as both its ends count it."""
        count = self._num_messages[src, dst, tag]
        self._num_messages[src, dst, tag] += 1
        source, target = self._ranks[src], self._ranks[dst]
        key = f"group {self.group_name}: message {count} from rank {source} to {target}, tag {tag}"
        cost_s = self.link.message_s(size_bytes) * self.link.slowdown((source, target))
        return Operation(key, 2, (source,), (target,), cost_s + self.link.stall_of(key), size_bytes)

    def _collective(self, name: str, size_bytes: int) -> Operation:
        key = f"group {self.group_name}: collective {next(self._num_collectives)} ({name})"
        ranks = tuple(self._ranks)
        cost_s = self.link.collective_s(name, size_bytes, len(ranks)) * self.link.slowdown(ranks)
        cost_s += self.link.stall_of(key) if len(ranks) > 1 else 0.0
        return Operation(key, len(ranks), ranks, ranks, cost_s, size_bytes)

    def _start(
        self, name: str, result: list, real: dist.Work, operation: Operation, posted_s: float
    ) -> LinkWork:
        """Post the operation, and return the Work that a thread will complete."""
        traffic.record(name, operation.size_bytes, self)
        row = self._schedule.arrive(operation, posted_s)
        work = LinkWork(result, self._timeout_s)
        self._crew.start(lambda: self._watch(work, name, real, operation, row, posted_s))
        return work

    def _watch(
        self, work: LinkWork, name: str, real: dist.Work, operation: Operation, row: int,
        posted_s: float,
    ) -> None:  # fmt: skip
        try:
            real.wait()
            start_s, due_s = self._schedule.due(row, operation, self._timeout_s)
        except Exception as error:
            work.fail(error)
            return
        work.know(due_s)
        sleep_until(due_s)
        record.keep(
            record.Completion(
                name, operation.size_bytes, posted_s, start_s, due_s, time.monotonic(),
                self.group_name,
            )
        )  # fmt: skip
        work.complete()


def _method(
    name: str, size: Callable[[Any, Any, int], int], of_gloo: str | Callable
) -> Callable[..., LinkWork]:
    def collective(self: LinkGroup, tensors: Any, *arguments: Any, **options: Any) -> LinkWork:
        posted_s = time.monotonic()
        if isinstance(of_gloo, str):
            real = getattr(self._gloo, of_gloo)(tensors, *arguments, **options)
        else:
            real = of_gloo(self._gloo, tensors, *arguments, **options)
        size_bytes = size(tensors, arguments[0] if arguments else None, self.size())
        operation = self._collective(name, size_bytes)
        result = [tensors] if isinstance(tensors, Tensor) else tensors
        return self._start(name, result, real, operation, posted_s)

    return collective


def _barrier(self: LinkGroup, opts: dist.BarrierOptions | None = None) -> LinkWork:
    posted_s = time.monotonic()
    real = self._gloo.barrier(opts or dist.BarrierOptions())
    return self._start("barrier", [], real, self._collective("barrier", 0), posted_s)


for _name, _row in COLLECTIVES.items():
    setattr(LinkGroup, _name, _method(*_row))
LinkGroup.barrier = _barrier
