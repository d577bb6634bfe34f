"""Parameters and buffers that all ranks share: alike at the start, buffers in each step."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from helpers.data_parallel.replicas import check_alike

BufferHook = Callable[[Any, dict[str, Tensor]], list[torch.futures.Future] | None]


class SharedState:
    """What `module` holds, but for the names in `ignored`, and how it is kept alike over ranks."""

    def __init__(self, module: nn.Module, ignored: set[str]) -> None:
        self.module, self.ignored = module, ignored
        self.parameters = {n: p for n, p in module.named_parameters() if n not in ignored}
        self._trains = self._which_train()
        self._hook: tuple[BufferHook, Any] | None = None
        #: Whether the hook runs after forward rather than before it; the broadcast never does.
        self.is_after_forward = False
        self.has_buffers = bool(self.buffers())

    def buffers(self) -> dict[str, Tensor]:
        """Return them as they are now: a module may put new ones in place of the old."""
        named = self.module.named_buffers()
        return {name: buffer for name, buffer in named if name not in self.ignored}

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the parameters that require gradients, and remember which those are."""
        self._trains = self._which_train()
        return {name: p for name, p in self.parameters.items() if p.requires_grad}

    def trains_others_now(self) -> bool:
        """Return whether one was frozen, thawed or cast since `trainable`. Local."""
        return self._which_train() != self._trains

    def _which_train(self) -> list[tuple[bool, torch.dtype]]:
        return [(p.requires_grad, p.dtype) for p in self.parameters.values()]

    def check_alike(self, group: dist.ProcessGroup) -> None:
        """Raise ValueError on every rank unless names, shapes, dtypes are alike on all, and which
        parameters require gradients."""
        named = {n if p.requires_grad else f"{n}, frozen,": p for n, p in self.parameters.items()}
        check_alike([*named.items(), *self.buffers().items()], group)

    def broadcast(self, group: dist.ProcessGroup, source: int, with_buffers: bool) -> None:
        """Give every rank what rank `source` of the group holds. Every rank must call this."""
        tensors: list[Tensor] = list(self.parameters.values())
        broadcast(tensors + list(self.buffers().values()) * with_buffers, group, source)

    def register(self, state: Any, hook: BufferHook, after_forward: bool) -> None:
        self._hook, self.is_after_forward = (hook, state), after_forward

    def sync_buffers(self, group: dist.ProcessGroup, source: int) -> list[torch.futures.Future]:
        """Broadcast them from rank `source`, or run the hook; return what the hook has started."""
        if self._hook is None:
            broadcast(self.buffers().values(), group, source)
            return []
        hook, state = self._hook
        return list(hook(state, self.buffers()) or [])


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
