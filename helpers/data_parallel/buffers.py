"""Buffers follow the first rank's: broadcast before a forward, or combined by a hook."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

BufferHook = Callable[[Any, dict[str, Tensor]], list[torch.futures.Future] | None]


class Buffers:
    """The buffers of `module` but for those named in `ignored`, kept alike over `group`."""

    def __init__(self, module: nn.Module, ignored: set[str]) -> None:
        self._module, self._ignored = module, ignored
        self._hook: tuple[BufferHook, Any] | None = None
        #: Whether the hook runs after forward rather than before it; the broadcast never does.
        self.is_after_forward = False

    def named(self) -> dict[str, Tensor]:
        """Return them as they are now: a module may put new ones in place of the old."""
        named = self._module.named_buffers()
        return {name: buffer for name, buffer in named if name not in self._ignored}

    def register(self, state: Any, hook: BufferHook, after_forward: bool) -> None:
        self._hook, self.is_after_forward = (hook, state), after_forward

    def sync(self, group: dist.ProcessGroup, source: int) -> list[torch.futures.Future]:
        """Broadcast them from rank `source`, or run the hook; return what the hook has started."""
        if self._hook is None:
            broadcast(self.named().values(), group, source)
            return []
        hook, state = self._hook
        return list(hook(state, self.named()) or [])


@torch.no_grad()
def broadcast(tensors: Iterable[Tensor], group: dist.ProcessGroup, source: int = 0) -> None:
    """Give every rank the tensors of rank `source` of the group, in place.

    Every rank must call this. One message for each dtype and device. It goes unseen by autograd's
    version counters: a graph of an earlier forward may need the tensor's memory, not its numbers
    (BatchNorm in training keeps its running mean, but never reads it in backward).
    """
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        if tensor.numel():
            kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor.data)
    for alike in kinds.values():
        flat = torch.cat([tensor.reshape(-1) for tensor in alike])
        dist.broadcast(flat, group=group, group_src=source)
        if dist.get_rank(group) != source:
            parts = flat.split([tensor.numel() for tensor in alike])
            for tensor, part in zip(alike, parts, strict=True):
                tensor.copy_(part.view_as(tensor))
