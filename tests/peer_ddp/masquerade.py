"""Let tests that ask for CUDA devices run on the CPU: none of them is about the device itself.

What is changed: the decorators that skip a test for want of GPUs, devices in calls of torch (a
TorchFunctionMode rewrites them), `Module.to` and `Module.cuda`, and torch.cuda's own functions.
"""

import contextlib
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.testing._internal import common_distributed

CPU = torch.device("cpu")

#: test_ddp_uneven_inputs runs a convolution of 256 channels over such an image 400 times; two cores
#: need more than its 400 s for that. What it tests has nothing to do with the size.
HUGE_IMAGE, SMALL_IMAGE = (1, 1, 1000, 1000), (1, 1, 16, 16)


def keep_all_tests() -> None:
    """Switch off the skips for want of GPUs; call it before distributed_test is imported."""

    def keep(*_: Any, **__: Any) -> Callable:
        return lambda test: test

    common_distributed.skip_if_lt_x_gpu = keep
    common_distributed.nccl_skip_if_lt_x_gpu = keep
    common_distributed.require_n_gpus_for_nccl_backend = keep
    common_distributed.skip_if_no_gpu = lambda test: test
    common_distributed.init_multigpu_helper = lambda world_size, backend: {
        rank: [rank] for rank in range(world_size)
    }


def names_a_gpu(device: Any) -> bool:
    if isinstance(device, torch.device):
        return device.type == "cuda"
    if isinstance(device, str):
        return device.startswith("cuda")
    return isinstance(device, int) and not isinstance(device, bool)


class CpuForCuda(TorchFunctionMode):
    """Inside, each function of torch that is asked for a CUDA device takes the CPU."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "cuda" and args:
            return args[0]
        if name == "ones" and args == HUGE_IMAGE:
            args = SMALL_IMAGE
        if names_a_gpu(kwargs.get("device")):
            kwargs["device"] = CPU
        if name == "to" and len(args) > 1 and names_a_gpu(args[1]):
            args = (args[0], CPU, *args[2:])
        return func(*args, **kwargs)


def hide_the_missing_gpus() -> None:
    """Make torch.cuda's functions do nothing, and modules stay on the CPU, in this process."""
    for name in ("set_device", "synchronize", "manual_seed"):
        setattr(torch.cuda, name, lambda *_, **__: None)
    for name in ("device", "stream"):
        setattr(torch.cuda, name, lambda *_, **__: contextlib.nullcontext())
    torch.cuda.current_device = lambda: 0
    torch.cuda.device_count = lambda: int(os.environ["WORLD_SIZE"])
    nn.Module.cuda = lambda self, device=None: self
    move = nn.Module.to

    def to(self: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        if args and names_a_gpu(args[0]):
            args = (CPU, *args[1:])
        if names_a_gpu(kwargs.get("device")):
            kwargs["device"] = CPU
        return move(self, *args, **kwargs)

    nn.Module.to = to
