"""Send to and receive from the other ranks of a group, under a tag, with failures named."""

import itertools
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch.distributed as dist
from torch import Tensor

#: Tags below are the reader's. So many calls may be in flight; then the numbers come again.
FIRST_TAG, NUM_TAGS = 1 << 20, 1 << 12

_num_calls: weakref.WeakKeyDictionary[dist.ProcessGroup, Iterator[int]]
_num_calls = weakref.WeakKeyDictionary()


def next_tag(group: dist.ProcessGroup) -> int:
    """Return a tag that no other collective in flight on this group has. Local.

    Drawn in the order of calls, which is the same on every rank: what a rank sends in one call
    can never be received in another, whichever of their threads runs first.
    """
    return FIRST_TAG + next(_num_calls.setdefault(group, itertools.count())) % NUM_TAGS


class Message(NamedTuple):
    """One message: "to" or "from" a rank of the group."""

    way: str
    peer: int
    tensor: Tensor


class Peers:
    """The ranks of a group, as one call of a collective talks to them.

    `rank`, `world_size` and every rank passed in are the group's own, 0 to world_size - 1.
    Tensors are contiguous. A message without elements is not sent: both ends know that. Each
    method returns when its messages are through (on a GPU: when they are enqueued).

    Raises ConnectionError, naming the rank at the other end and the step, where a message fails
    or does not get through within the group's timeout.
    """

    def __init__(self, group: dist.ProcessGroup, name: str, tag: int) -> None:
        self.rank = dist.get_rank(group)
        self.world_size = dist.get_world_size(group)
        self._group, self._name, self._tag, self._step = group, name, tag, 0

    def send(self, tensor: Tensor, to: int) -> None:
        self._transfer(Message("to", to, tensor))

    def receive(self, tensor: Tensor, source: int) -> None:
        self._transfer(Message("from", source, tensor))

    def exchange(self, sent: Tensor, to: int, received: Tensor, source: int) -> None:
        """Send and receive at once: each alone would wait for the other, for ever in a ring."""
        # Sends are waited for first: a dead right neighbour shows there at once, while a
        # receive from the left would only tell that the left one has given up.
        self._transfer(Message("to", to, sent), Message("from", source, received))

    def _transfer(self, *messages: Message) -> None:
        self._step += 1
        posted = []
        batches = self._batches([message for message in messages if message.tensor.numel()])
        for batch in reversed(batches):  # to be ready to receive costs nothing, to send does
            with self._naming(batch):
                posted.append((batch, dist.batch_isend_irecv([*map(self._operation, batch)])))
        for batch, works in reversed(posted):
            with self._naming(batch):
                for work in works:
                    work.wait()

    def _batches(self, messages: list[Message]) -> list[list[Message]]:
        """NCCL needs both ways in one batch; elsewhere one each, to tell which one failed."""
        if messages and messages[0].tensor.is_cuda:
            return [messages]
        return [[message] for message in messages]

    def _operation(self, message: Message) -> dist.P2POp:
        function = dist.isend if message.way == "to" else dist.irecv
        way = {"group": self._group, "group_peer": message.peer, "tag": self._tag}
        return dist.P2POp(function, message.tensor, **way)

    @contextmanager
    def _naming(self, batch: list[Message]) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, OSError) as error:
            ways = ", ".join(f"{message.way} {self._rank_name(message.peer)}" for message in batch)
            reason = str(error).partition("\n")[0]
            raise ConnectionError(
                f"{self._rank_name(self.rank)}, {self._name}, step {self._step}: no message "
                f"{ways}; has it ended, or does it wait elsewhere? ({reason})"
            ) from error

    def _rank_name(self, rank: int) -> str:
        global_rank = dist.get_global_rank(self._group, rank)
        other = f" of the group (global rank {global_rank})" if global_rank != rank else ""
        return f"rank {rank}{other}"
