"""A mean over the samples of all ranks: sums and counts travel together, and meet once."""

import math
from numbers import Real
from typing import overload

import torch
import torch.distributed as dist
from torch import Tensor


@overload
def global_mean(total: float, count: float, group: dist.ProcessGroup | None = None) -> float: ...
@overload
def global_mean(total: Tensor, count: float, group: dist.ProcessGroup | None = None) -> Tensor: ...
def global_mean(total, count, group=None):
    """Return the sum of all ranks' totals over the sum of their counts. Every rank must call this.

    total: a number, or a tensor of several sums over the same samples (loss, correct answers),
    of one shape on all ranks; then a float64 tensor of that shape comes back, on its device.
    count: how many samples they are sums over, 0 on a rank that had none. The mean of the ranks'
    own means would be another number where counts differ. One all-reduce in float64 for both;
    counts are exact up to 2**53. Without an open process group: this process alone.

    Raises ValueError on every rank where no rank has a sample, or a count is negative or not
    finite; TypeError, on this rank, for a total that is neither. Built in chapter 06.
    """
    if not isinstance(total, Tensor | Real):
        raise TypeError(f"total: found {type(total).__name__}, expected a number or a tensor")
    is_good = math.isfinite(count) and count >= 0
    sums = torch.as_tensor(total).detach().to(_device(total, group), torch.float64)
    sent = torch.tensor([count if is_good else math.nan], dtype=torch.float64, device=sums.device)
    numbers = torch.cat([sums.flatten(), sent])
    if dist.is_initialized():
        dist.all_reduce(numbers, group=group)
    total_count = numbers[-1].item()
    if not total_count > 0:
        found = "0 on all ranks" if total_count == 0 else "negative or not finite on some rank"
        raise ValueError(f"count {found} (here {count}), expected samples to take the mean over")
    mean = numbers[:-1].view(sums.shape) / total_count
    return mean if isinstance(total, Tensor) else mean.item()


def _device(total: float | Tensor, group: dist.ProcessGroup | None) -> torch.device:
    """The tensor's own device; for a number the CPU, or the GPU where the group knows only that."""
    if isinstance(total, Tensor):
        return total.device
    takes_cpu = not dist.is_initialized() or "cpu" in dist.get_backend_config(group)
    return torch.device("cpu" if takes_cpu else "cuda")
