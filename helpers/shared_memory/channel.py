"""What a group of ranks keeps between its calls, and how an operation fails for all of them."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from helpers.collectives.calls import flat_of, write_back

from .buffers import Buffers
from .direct import sum_directly
from .peers import Peers
from .segments import SegmentedSum, block_bytes
from .work import Line


class Channel:
    """What a group keeps between its calls: memory, pipes, the line of its operations."""

    def __init__(self, group: dist.ProcessGroup, timeout_s: float) -> None:
        self.line = Line()
        self._failure = ""
        self._peers = Peers(group, block_bytes(dist.get_world_size(group)), timeout_s)
        self._buffers = Buffers(self._peers)

    def task(self, tensor: Tensor, timeout_s: float) -> Callable[[], None]:
        """What is to be done for one tensor, when its turn has come."""

        mode = torch.inference_mode if tensor.is_inference() else torch.no_grad

        def sum_in_place() -> None:
            with mode(), self._telling_others():  # a thread does not inherit a mode
                buffer = self._buffers.find(tensor)
                if buffer and sum_directly(self._peers, tensor, buffer, timeout_s):
                    return
                flat = flat_of(tensor)
                SegmentedSum(self._peers, flat, timeout_s).run()
                write_back(flat, tensor)

        return sum_in_place

    def make(
        self, num_elements: int, dtype: torch.dtype, group: dist.ProcessGroup, timeout_s: float
    ) -> Tensor:
        """Return a tensor that the other ranks see, after the operations before. As `empty`."""
        made: list[Tensor] = []

        def make() -> None:
            with self._telling_others():
                made.append(self._buffers.make(num_elements, dtype, group, timeout_s))

        self.line.run(torch.empty(0), make)
        return made[0]

    @contextmanager
    def _telling_others(self) -> Iterator[None]:
        """Close the pipes if this fails: so the others learn of it at once."""
        if self._failure:
            raise RuntimeError(f"an all-reduce of this group has failed: {self._failure}")
        try:
            yield
        except ValueError:
            raise  # all ranks have met and go on together
        except BaseException as error:
            self._failure = str(error) or type(error).__name__
            self._peers.close()
            raise

    def close(self) -> None:
        """Give memory and pipes back once all operations are through. Local."""
        self.line.close(self._close)

    def _close(self) -> None:
        self._buffers.close()
        self._peers.close()


_channels: weakref.WeakKeyDictionary[dist.ProcessGroup, Channel] = weakref.WeakKeyDictionary()


def channel_of(group: dist.ProcessGroup, timeout_s: float) -> Channel:
    """Return the group's channel. Every rank must call this: the first call opens it."""
    if group not in _channels:
        _channels[group] = Channel(group, timeout_s)
        weakref.finalize(group, _channels[group].close)
    return _channels[group]
