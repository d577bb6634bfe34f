"""The class that takes the place of torch's: a module whose backward averages over the ranks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join, Joinable, JoinHook

from helpers.buckets import Bucket
from helpers.data_parallel import options
from helpers.data_parallel.buffers import Buffers, broadcast
from helpers.data_parallel.delayed import DelayedGradients
from helpers.data_parallel.joining import DataParallelJoinHook, agree_on_sync, find_rank
from helpers.data_parallel.outputs import find_unused, through_gate
from helpers.data_parallel.reducer import Reducer
from helpers.data_parallel.replicas import check_alike, move
from helpers.data_parallel.slots import Plan
from helpers.data_parallel.static_graph import StaticReducer
from helpers.data_parallel.torch_names import TorchNames
from helpers.data_parallel.transport import AllReduce, Transport, check_hook


class DistributedDataParallel(TorchNames, nn.Module, Joinable):
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
        Joinable.__init__(self)
        delayed = list(delay_all_reduce_named_params or ())
        trigger = param_to_hook_all_reduce
        options.check_others(module, check_reduction, mixed_precision, bool(delayed), trigger)
        self.module, self.dim = module, dim
        self.process_group = options.group_of(process_group, device_mesh)
        self.parameters_to_ignore = options.ignored_names(module, delayed)
        followed = [p for name, p in module.named_parameters() if self._follows(name)]
        self.device = options.check_parameters(followed, bool(delayed))
        options.check_devices(device_ids, output_device, followed)
        self.device_ids = list(device_ids) if device_ids else None
        self.forward_sync_buffers, at_start = options.buffers_to_sync(
            broadcast_buffers, forward_sync_buffers
        )
        self.find_unused_parameters, self.static_graph = find_unused_parameters, static_graph
        self.gradient_as_bucket_view = gradient_as_bucket_view
        self.skip_all_reduce_unused_params = skip_all_reduce_unused_params
        self.require_backward_grad_sync = self.require_forward_param_sync = True
        self._plan = plan or options.plan_of(bucket_cap_mb, bucket_cap_mb_list)
        self._all_reduce = all_reduce
        self._buffer_sync = Buffers(module, self.parameters_to_ignore)
        if init_sync:
            self._check_alike()
            self.broadcast_state(0, at_start)
        self._delayed = None
        if delayed:
            parameters = [parameter for _, parameter in delayed]
            broadcast(parameters, self.process_group)
            self._delayed = DelayedGradients(parameters, trigger, self.process_group)
        self._transport = Transport(self.process_group, all_reduce)
        self._make_reducer()

    # -- a step ------------------------------------------------------------------------------

    def forward(self, *inputs: Any, **named_inputs: Any) -> Any:
        """Return the module's output. Every rank must call this, and then its backward."""
        if self._reducer is None:  # all gradients are delayed
            output = self.module(*inputs, **named_inputs)
            self._delayed.lay_out()
            return output
        self._before_forward()
        if self.device_ids:
            device = torch.device(self.device.type, torch.device(self.device_ids[0]).index)
            inputs, named_inputs = move((inputs, named_inputs), device)
        return self._after_forward(self.module(*inputs, **named_inputs))

    def _before_forward(self) -> None:
        has_graph = torch.is_grad_enabled()
        if has_graph:
            self._follow_changed_parameters()
            self._reducer.before_forward(self.require_backward_grad_sync)
        work = Join.notify_join_context(self)
        if work and not self._divides_by_initial_world_size:
            self._reducer.divisor = _sum_of(work)
        if has_graph:
            self._maybe_rebuild()
        if self.will_sync_buffers(after_forward=False):
            self.sync_buffers()
        if self._join_config.enable:
            agree_on_sync(self, self.require_backward_grad_sync)

    def _after_forward(self, output: Any) -> Any:
        if self.will_sync_buffers(after_forward=True):
            self._reducer.futures += self.sync_buffers()
        syncs = torch.is_grad_enabled() and self.require_backward_grad_sync
        self.require_forward_param_sync = syncs
        if self._delayed:
            self._delayed.lay_out()
        if not syncs:
            return output
        if isinstance(self._reducer, StaticReducer):
            if self._reducer.is_recording:
                return through_gate(output, self._reducer.at_start_of_backward)
        elif self.find_unused_parameters:
            self._reducer.before_backward(find_unused(output, self._reducer.slots))
            return through_gate(output, _nothing)
        return output

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

    # -- what may be set ---------------------------------------------------------------------

    @property
    def buckets(self) -> list[Bucket]:
        """The buckets as they are now, in the order in which they are sent."""
        return list(self._reducer.buckets) if self._reducer else []

    def register_comm_hook(self, state: Any, hook: Callable[..., torch.futures.Future]) -> None:
        """Have `hook(state, bucket)` combine each bucket instead of an all-reduce; once, at first.

        bucket: as torch.distributed.GradBucket, its buffer this rank's gradients, not divided by
        anything. The hook returns a Future of the tensor that every rank is to have.
        Every rank must register the same.
        """
        try:
            check_hook(hook)
        except (TypeError, ValueError) as error:
            self._reducer.fail(error)
        self._transport.register(state, hook)

    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Join:
        """Return a context for ranks with unequal numbers of inputs, around the loop over them.

        A rank that has no more answers the others' messages with zeros. Every rank must enter it.
        divide_by_initial_world_size=False divides by the number of ranks that still have inputs.
        """
        return Join(
            [self],
            enable,
            throw_on_early_termination,
            divide_by_initial_world_size=divide_by_initial_world_size,
        )

    def join_hook(self, **options: Any) -> JoinHook:
        self._divides_by_initial_world_size = options.get("divide_by_initial_world_size", True)
        self._reducer.divisor = None
        return DataParallelJoinHook(self)

    @property
    def join_device(self) -> torch.device:
        return self.device

    @property
    def join_process_group(self) -> dist.ProcessGroup:
        return self.process_group

    # -- the state that all ranks share ------------------------------------------------------

    def broadcast_state(self, source: int, with_buffers: bool) -> None:
        """Give every rank the parameters, and buffers, of rank `source`. Every rank must call."""
        named = self.module.named_parameters()
        tensors: list[Tensor] = [p for name, p in named if self._follows(name)]
        if with_buffers:
            tensors += self._buffer_sync.named().values()
        broadcast(tensors, self.process_group, source)

    def will_sync_buffers(self, after_forward: bool) -> bool:
        return (
            self.require_forward_param_sync
            and self.forward_sync_buffers
            and self._buffer_sync.is_after_forward is after_forward
            and bool(self._buffer_sync.named())
        )

    def sync_buffers(self, is_candidate: bool = True) -> list[torch.futures.Future]:
        """Broadcast the buffers of the first rank: of the highest that has inputs, in `join`."""
        source = find_rank(self, is_candidate) if self._join_config.enable else 0
        return self._buffer_sync.sync(self.process_group, source)

    def _follows(self, name: str) -> bool:
        return name not in self.parameters_to_ignore

    def _check_alike(self) -> None:
        named = [*self.module.named_parameters(), *self.module.named_buffers()]
        check_alike(((n, t) for n, t in named if self._follows(n)), self.process_group)

    def _make_reducer(self) -> None:
        named = dict(self.module.named_parameters())
        self._trainable = {n: p.requires_grad for n, p in named.items() if self._follows(n)}
        trainable = {name: named[name] for name, trains in self._trainable.items() if trains}
        self._reducer = None
        if trainable:
            kind = StaticReducer if self.static_graph else Reducer
            self._reducer = kind(
                trainable,
                self._transport,
                self._plan,
                as_views=self.gradient_as_bucket_view,
                tracks_use=self.find_unused_parameters,
                skips_unused=self.skip_all_reduce_unused_params,
            )

    def _follow_changed_parameters(self) -> None:
        """Start anew with the parameters that require gradients now. Every rank must agree."""
        named = self.module.named_parameters()
        if {n: p.requires_grad for n, p in named if self._follows(n)} != self._trainable:
            self._reducer.remove_hooks()
            self._make_reducer()

    def _maybe_rebuild(self) -> bool:
        return not self.find_unused_parameters and self._reducer.rebuild()


def _sum_of(work: dist.Work) -> Callable[[], float]:
    """Return what waits for an all-reduce of one number, and returns it."""
    future = work.get_future()
    return lambda: future.wait()[0].item()


def _nothing() -> None:
    pass
