"""Names that torch's own class has beside its documented ones, and that code outside asks for."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from helpers.data_parallel.shared_state import broadcast
from helpers.data_parallel.transport import Transport


class TorchNames:
    """What optimizers, hooks and tests of torch call on a DistributedDataParallel; and pickling."""

    #: Of torch's coalesced broadcasts: a tensor's share of one message. Ours has no limit.
    broadcast_bucket_size = 250 * 2**20
    _was_joined = False
    _ddp_sink_clone = True

    @property
    def broadcast_buffers(self) -> bool:
        return self.forward_sync_buffers

    @broadcast_buffers.setter
    def broadcast_buffers(self, value: bool) -> None:
        self.forward_sync_buffers = value

    @property
    def _used_map(self) -> Tensor | None:
        return self._reducer.num_users

    @property
    def _has_rebuilt_buckets(self) -> bool:
        return self._reducer._layout.has_rebuilt

    def _register_builtin_comm_hook(self, kind: dist.BuiltinCommHookType) -> None:
        hooks = {
            dist.BuiltinCommHookType.ALLREDUCE: default_hooks.allreduce_hook,
            dist.BuiltinCommHookType.FP16_COMPRESS: default_hooks.fp16_compress_hook,
        }
        self.register_comm_hook(self.process_group, hooks[kind])
        self._transport.hook_name = str(kind)

    def _default_broadcast_coalesced(
        self, bufs: list[Tensor] | None = None, bucket_size: Any = None, authoritative_rank: int = 0
    ) -> None:
        """Broadcast buffers, all by default, from one rank; every rank must call this."""
        bufs = list(self._shared.buffers().values()) if bufs is None else bufs
        broadcast(bufs, self.process_group, authoritative_rank)

    def _register_buffer_comm_hook(
        self, state: Any, hook: Callable, comm_hook_location: Any = None
    ) -> None:
        """`comm_hook_location`: torch's enumeration; None is after forward, as there."""
        if not callable(hook):
            raise TypeError(f"found {type(hook).__name__}, expected a callable hook")
        is_before = getattr(comm_hook_location, "name", "") == "PRE_FORWARD"
        self._shared.register(state, hook, after_forward=not is_before)

    def _set_static_graph(self) -> None:
        if self.static_graph:
            warnings.warn("static_graph is True already", stacklevel=2)
            return
        if self._reducer.num_reductions or self._reducer.is_under_way:
            self._reducer.fail(
                RuntimeError("_set_static_graph should be called before training loop starts")
            )
        self.static_graph = True
        self._reducer.remove_hooks()
        self._make_reducer()

    def _remove_autograd_hooks(self) -> None:
        self._reducer.remove_hooks()

    def _check_reducer_finalized(self) -> None:
        """Raise RuntimeError where a backward has begun and not sent all buckets."""
        self._reducer.check_finished()

    def _update_process_group(self, new_process_group: dist.ProcessGroup) -> None:
        """Average over another group from now on. Every one of its ranks must call this."""
        if isinstance(new_process_group, dist.ProcessGroup):
            self.process_group = self._transport.group = new_process_group
        self._reducer.reset()

    def _get_ddp_logging_data(self) -> dict[str, Any]:
        """Return the number of reductions and the last error: `iteration`, `has_error`, `error`."""
        error, hook_name = self._reducer.error, self._transport.hook_name
        return {
            "iteration": self._reducer.num_reductions,
            "has_error": int(error is not None),
            "error": str(error or ""),
            "join_uneven_inputs": self._was_joined,
            **({"comm_hook": hook_name} if hook_name else {}),
        }

    def _set_ddp_sink_clone(self, val: bool) -> None:
        """Say whether outputs are cloned where the graph is watched; not if the loss is read only.

        Outputs that are changed in place need it.
        """
        self._ddp_sink_clone = val

    @staticmethod
    def _get_data_parallel_params(module: nn.Module, named_params: bool = False) -> Iterator:
        """Yield the parameters (or names and parameters) that are not ignored."""
        for name, parameter in module.named_parameters():
            if not hasattr(parameter, "_ddp_ignored"):
                yield (name, parameter) if named_params else parameter

    @staticmethod
    def _set_params_and_buffers_to_ignore_for_model(module: nn.Module, names: list[str]) -> None:
        """Have a later wrapper leave these parameters and buffers alone, by full name."""
        module._ddp_params_and_buffers_to_ignore = names
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if name in names:
                tensor._ddp_ignored = True

    def __getstate__(self) -> dict[str, Any]:
        if self.process_group is not dist.group.WORLD:
            raise RuntimeError(
                "DDP Pickling/Unpickling are only supported when using DDP with the default "
                "process group: found another one, which no other process could know"
            )
        live = ("process_group", "_reducer", "_transport")
        return {name: value for name, value in self.__dict__.items() if name not in live}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if not dist.is_initialized():
            raise RuntimeError("no process group is open, expected one around the unpickling")
        self.process_group = dist.group.WORLD
        self._transport = Transport(self.process_group, self._all_reduce)
        self._make_reducer()
