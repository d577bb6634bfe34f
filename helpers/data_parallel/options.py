"""The constructor's arguments: what is refused, what is deprecated, what follows from them."""

import functools
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parameter import UninitializedParameter

from helpers.buckets import plan_buckets
from helpers.data_parallel.slots import Plan
from helpers.data_parallel.transport import Transport

MIB = 2**20


def group_of(process_group: dist.ProcessGroup | None, device_mesh: Any) -> dist.ProcessGroup:
    """Return the group to average over: the one passed, the mesh's, or the default one."""
    if process_group is not None and device_mesh is not None:
        raise RuntimeError("Cannot specify both process_group and device_mesh arguments.")
    if device_mesh is not None:
        if device_mesh.ndim != 1:
            raise RuntimeError(f"Only 1D device mesh is supported, but got {device_mesh}.")
        return device_mesh.get_group(mesh_dim=0)
    if process_group is not None:
        return process_group
    if not dist.is_initialized():
        raise RuntimeError("no process group is open, expected `with process_group():` around")
    return dist.group.WORLD


def caps_bytes(caps_mb: Sequence[float] | None) -> list[int]:
    return [max(1, int(cap * MIB)) for cap in caps_mb or ()]  # 0 is a bucket for each parameter


def plan_of(cap_mb: float | None, caps_bytes: Sequence[int]) -> Plan:
    """Return how to plan buckets: by a cap in MiB, or by one for each bucket. Picklable."""
    if caps_bytes:
        return functools.partial(plan_buckets, cap_bytes=list(caps_bytes))
    if cap_mb is None:
        return plan_buckets
    return functools.partial(plan_buckets, cap_bytes=max(1, int(cap_mb * MIB)))


def buffers_to_sync(broadcast: bool | None, forward_sync: bool | None) -> tuple[bool, bool]:
    """Return whether buffers are broadcast before forwards, and at the start."""
    if broadcast is not None:
        warnings.warn(
            "`broadcast_buffers` is deprecated, as in torch: pass `forward_sync_buffers`, which "
            "wins where both are given. With forward_sync_buffers=False buffers are still "
            "broadcast once, at the start.",
            FutureWarning,
            stacklevel=3,
        )
    if forward_sync is not None:
        return forward_sync, True
    both = broadcast is None or broadcast
    return both, both


def ignored_names(module: nn.Module, delayed: Iterable[tuple[str, nn.Parameter]]) -> set[str]:
    """Return the names of parameters and buffers that are left alone."""
    ignored = getattr(module, "_ddp_params_and_buffers_to_ignore", ())
    return {*ignored, *(name for name, _ in delayed)}


def check_parameters(parameters: Sequence[nn.Parameter], has_delayed: bool) -> torch.device:
    """Return the first device; raise where there is nothing to average, or not in one place."""
    if not has_delayed and not any(parameter.requires_grad for parameter in parameters):
        raise RuntimeError(
            "DistributedDataParallel is not needed when a module "
            "doesn't have any parameter that requires a gradient."
        )
    if any(isinstance(parameter, UninitializedParameter) for parameter in parameters):
        raise RuntimeError(
            "found uninitialized parameters, expected known shapes: "
            "run one forward of the lazy modules before wrapping"
        )
    types = sorted({parameter.device.type for parameter in parameters})
    if len(types) > 1:
        raise ValueError(f"found parameters on {types}, expected one type of device")
    return parameters[0].device if parameters else torch.device("cpu")


def check_devices(
    device_ids: Sequence[Any] | None, output_device: Any, parameters: Sequence[nn.Parameter]
) -> list[torch.device] | None:
    """Return the device for inputs, in a list; raise ValueError unless the module is there."""
    if device_ids is not None and len(device_ids) > 1:
        raise ValueError("device_ids can only be None or contain a single element.")
    devices = {parameter.device for parameter in parameters}
    is_one_gpu = len(devices) == 1 and next(iter(devices)).type != "cpu"
    if (device_ids or output_device is not None) and not is_one_gpu:
        raise ValueError(
            "DistributedDataParallel device_ids and output_device arguments only work with a "
            f"module on one GPU: found device_ids {device_ids}, output_device {output_device}, "
            f"parameters on {sorted(map(str, devices))}; expected None for both"
        )
    return [_device(each, next(iter(devices)).type) for each in device_ids] if device_ids else None


def _device(device: Any, kind: str) -> torch.device:
    return torch.device(kind, device) if isinstance(device, int) else torch.device(device)


def check_others(
    module: nn.Module, check_reduction: bool, mixed_precision: Any, has_delayed: bool, trigger: Any
) -> None:
    """Warn of what does nothing, raise for what is not there."""
    if check_reduction:
        warnings.warn("`check_reduction` does nothing, as in torch", FutureWarning, stacklevel=3)
    if mixed_precision is not None:
        raise NotImplementedError(
            "mixed_precision is private in torch, and not here: expected None; "
            "torch.autocast around forward works"
        )
    if has_delayed != (trigger is not None):
        raise ValueError(
            "delay_all_reduce_named_params and param_to_hook_all_reduce "
            "need to be set at the same time."
        )
    sparse = [
        f"{name}.weight".lstrip(".")
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag)
        and layer.sparse
        and layer.weight.requires_grad
    ]
    if sparse:
        raise NotImplementedError(f"sparse gradients of {', '.join(sparse)}, expected dense ones")
    sync_bn = any(isinstance(layer, nn.SyncBatchNorm) for layer in module.modules())
    if sync_bn and all(parameter.device.type == "cpu" for parameter in module.parameters()):
        raise ValueError("SyncBatchNorm layers only work with GPU modules")


def warn_of_hook(transport: Transport) -> None:
    """Warn where buckets change under a communication hook, which may keep a state for each."""
    if transport.has_hook:
        warnings.warn(
            "parameters were frozen or thawed, so the buckets are new ones: a communication hook "
            "that keeps a state for each bucket (PowerSGD) has to be registered anew",
            stacklevel=4,
        )
