"""The class that takes the place of torch's: a module whose backward averages over the ranks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.profiler import record_function

from helpers.buckets import Bucket
from helpers.data_parallel import options
from helpers.data_parallel.compiling import not_compiled
from helpers.data_parallel.delayed import DelayedGradients
from helpers.data_parallel.joining import JoinableWrapper
from helpers.data_parallel.outputs import find_unused, through_gate
from helpers.data_parallel.reducer import Reducer
from helpers.data_parallel.replicas import move
from helpers.data_parallel.shared_state import SharedState, broadcast
from helpers.data_parallel.slots import Plan
from helpers.data_parallel.static_graph import StaticReducer
from helpers.data_parallel.torch_names import TorchNames
from helpers.data_parallel.transport import AllReduce, Transport, check_hook


class DistributedDataParallel(TorchNames, JoinableWrapper, nn.Module):
    """A module that is the same on every rank, and whose backward leaves the mean gradients.

        model = DistributedDataParallel(make_model())
        loss = loss_sum(model, shard) * world_size / global_count
        loss.backward()                  # averages over the ranks meanwhile, bucket by bucket
        optimizer.step()

    Every rank must construct it: parameters and buffers become those of the group's first rank.
    Every rank must call forward and backward equally often (but see `join`), with the same
    parameters in use (but see `find_unused_parameters`).

    The arguments are those of torch 2.13's class, in its order; what torch says of them holds.
    `dim` and `batched_grad_copy` change nothing here; `mixed_precision` is refused. Two more:
    all_reduce: callable(tensor, group=, async_op=True) -> Work, in place of torch.distributed's:
        any of `helpers.collectives`, `helpers.shared_memory.all_reduce`. SUM, in place.
    plan: callable(parameters) -> list of buckets, each a list of parameters, in the order to send
        them; it is given them in the order in which gradients become ready. None: by
        `bucket_cap_mb`. Such as `partial(plan_buckets, link=link, ready_s=ready_s)`.

    Raises ValueError on every rank where names, shapes or dtypes differ between ranks; RuntimeError
    in the next forward where a parameter got no gradient, with its name.
    Source: arXiv:2006.15704. Built in chapters 10 to 12.
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: list | None = None,
        output_device: Any = None,
        dim: int = 0,
        broadcast_buffers: bool | None = None,
        init_sync: bool = True,
        process_group: dist.ProcessGroup | None = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        delay_all_reduce_named_params: list[tuple[str, nn.Parameter]] | None = None,
        param_to_hook_all_reduce: nn.Parameter | None = None,
        mixed_precision: None = None,
        device_mesh: Any = None,
        skip_all_reduce_unused_params: bool = False,
        bucket_cap_mb_list: list[float] | None = None,
        batched_grad_copy: bool = False,
        forward_sync_buffers: bool | None = None,
        *,
        all_reduce: AllReduce | None = None,
        plan: Plan | None = None,
    ) -> None:
        super().__init__()
        delayed = list(delay_all_reduce_named_params or ())
        trigger = param_to_hook_all_reduce
        options.check_others(module, check_reduction, mixed_precision, bool(delayed), trigger)
        self.module, self.dim, self.device_mesh = module, dim, device_mesh
        self.process_group = options.group_of(process_group, device_mesh)
        self.parameters_to_ignore = options.ignored_names(module, delayed)
        self._shared = SharedState(module, self.parameters_to_ignore)
        parameters = list(self._shared.parameters.values())
        self.device = options.check_parameters(parameters, bool(delayed))
        self.device_ids = options.check_devices(device_ids, output_device, parameters)
        self.forward_sync_buffers, at_start = options.buffers_to_sync(
            broadcast_buffers, forward_sync_buffers
        )
        self.find_unused_parameters, self.static_graph = find_unused_parameters, static_graph
        self.gradient_as_bucket_view = gradient_as_bucket_view
        self.skip_all_reduce_unused_params = skip_all_reduce_unused_params
        self.require_backward_grad_sync = self.require_forward_param_sync = True
        self.bucket_bytes_cap_list = options.caps_bytes(bucket_cap_mb_list)
        self._plan = plan or options.plan_of(bucket_cap_mb, self.bucket_bytes_cap_list)
        self._all_reduce, self._agrees_first = all_reduce, plan is not None
        if init_sync:
            self._shared.check_alike(self.process_group)
            self._shared.broadcast(self.process_group, 0, at_start)
        self._delayed = None
        if delayed:
            broadcast([parameter for _, parameter in delayed], self.process_group)
            self._delayed = DelayedGradients(delayed, trigger, self.process_group)
        self._transport = Transport(self.process_group, all_reduce)
        self._make_reducer()

    # -- a step ------------------------------------------------------------------------------

    def forward(self, *inputs: Any, **named_inputs: Any) -> Any:
        """Return the module's output. Every rank must call this, and then its backward."""
        with record_function("DistributedDataParallel.forward"):
            self._follow_frozen()
            if self._reducer:
                self._before_forward()
            if self.device_ids:
                inputs, named_inputs = move((inputs, named_inputs), self.device_ids[0])
            output = self.module(*inputs, **named_inputs)
            if self._delayed:
                self._delayed.lay_out()
            return self._after_forward(output) if self._reducer else output

    @not_compiled
    def _follow_frozen(self) -> None:
        """Start anew where parameters were frozen or thawed: alike on every rank."""
        if torch.is_grad_enabled() and self._shared.trains_others_now():
            options.warn_of_hook(self._transport)
            if self._reducer:
                self._reducer.remove_hooks()
            self._make_reducer()

    @not_compiled
    def _before_forward(self) -> None:
        if has_graph := torch.is_grad_enabled():
            self._reducer.before_forward(self.require_backward_grad_sync)
        self._tell_joined()
        if has_graph:
            self._maybe_rebuild()
        if self._syncs_buffers(after_forward=False):
            self._sync_buffers()
        if self._join_config.enable:
            self._agree_on_sync(self.require_backward_grad_sync)

    @not_compiled
    def _after_forward(self, output: Any) -> Any:
        if self._syncs_buffers(after_forward=True):
            self._reducer.futures += self._sync_buffers()
        syncs = torch.is_grad_enabled() and self.require_backward_grad_sync
        if syncs is not self.require_forward_param_sync:
            self.require_forward_param_sync = syncs
        return self._watch(output) if syncs else output

    def _watch(self, output: Any) -> Any:
        """Return the output, with a gate for backward where the reducer has to know its graph."""
        reducer = self._reducer
        if reducer.is_static:
            if reducer.is_recording:
                start, clones = reducer.start_recording, self._ddp_sink_clone
                output, has_gate = through_gate(output, start, clones)
                reducer.expect_gate(has_gate)
            return output
        if not self.find_unused_parameters:
            return output
        with record_function("search_unused_parameters"):
            reducer.expect_none_of(find_unused(output, reducer.slots))
        return through_gate(output, clones=self._ddp_sink_clone)[0]

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Leave the gradients of forwards inside to this rank; the next one outside sums all.

        The flag is read in forward: a backward alone inside is synchronised still.
        Source: arXiv:2006.15704, section 3.2.4. Built in chapter 12.
        """
        before = self.require_backward_grad_sync
        self.require_backward_grad_sync = False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    @property
    def buckets(self) -> list[Bucket]:
        """The buckets as they are now, in the order in which they are sent."""
        return list(self._reducer.buckets) if self._reducer else []

    def register_comm_hook(self, state: Any, hook: Callable[..., torch.futures.Future]) -> None:
        """Have `hook(state, bucket)` combine each bucket instead of an all-reduce; once, at first.

        bucket: as torch.distributed.GradBucket, its buffer this rank's gradients, not divided by
        anything. The hook returns a Future of the tensor that every rank is to have.
        Every rank must register the same. Raises TypeError or ValueError for another signature.
        """
        try:
            check_hook(hook)
        except (TypeError, ValueError) as error:
            self._reducer.fail(error)
        self._transport.register(state, hook)

    # -- what the steps above are made of ------------------------------------------------------

    def _make_reducer(self) -> None:
        trainable = self._shared.trainable()
        kind = StaticReducer if self.static_graph else Reducer
        self._reducer = None  # all gradients may be delayed
        if trainable:
            self._reducer = kind(
                trainable,
                self._transport,
                self._plan,
                as_views=self.gradient_as_bucket_view,
                tracks_use=self.find_unused_parameters,
                skips_unused=self.skip_all_reduce_unused_params,
                agrees_first=self._agrees_first,
            )

    def _maybe_rebuild(self) -> bool:
        return self._reducer.rebuild()

    def _syncs_buffers(self, after_forward: bool) -> bool:
        shared = self._shared
        wants = shared.has_buffers and self.forward_sync_buffers
        return (
            wants and self.require_forward_param_sync and shared.is_after_forward is after_forward
        )

    def _sync_buffers(self, is_candidate: bool = True) -> list[torch.futures.Future]:
        """Broadcast the buffers of the first rank: of the highest that has inputs, in `join`."""
        source = self._highest_rank(is_candidate) if self._join_config.enable else 0
        return self._shared.sync_buffers(self.process_group, source)
