"""What is timed: each kernel beside torch's own way, and beside bare movement of as many bytes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from helpers import kernels

Work = Callable[[], object]


@dataclass(frozen=True)
class Contest:
    """One row of the table. `bare` moves `moved_bytes` and computes nothing, or next to nothing."""

    name: str
    moved_bytes: int
    ours: Work
    torch: Work
    bare: Work
    bare_name: str


def contests(device: torch.device, moved_bytes: int) -> Iterator[Contest]:
    """Yield the contests, each with tensors of its own, about `moved_bytes` in all. Local."""
    yield _accumulate(device, moved_bytes, torch.bfloat16)
    yield _accumulate(device, moved_bytes, torch.float32)
    yield _pack(device, moved_bytes, is_aligned=True)
    yield _pack(device, moved_bytes, is_aligned=False)
    yield _unpack(device, moved_bytes)
    yield _squares(device, moved_bytes)


def _accumulate(device: torch.device, moved_bytes: int, dtype: torch.dtype) -> Contest:
    bytes_each = 4 + dtype.itemsize + 4
    total = torch.ones(moved_bytes // bytes_each, device=device)
    gradient = torch.ones_like(total, dtype=dtype)
    return Contest(
        f"accumulate_, {dtype}".replace("torch.", ""),
        len(total) * bytes_each,
        lambda: kernels.accumulate_(total, gradient, 1 / 3),
        lambda: total.add_(gradient, alpha=1 / 3),
        *_copy(device, len(total) * bytes_each),
    )


def _pack(device: torch.device, moved_bytes: int, is_aligned: bool) -> Contest:
    gradients, views = _bucket(device, moved_bytes, 0 if is_aligned else 1)
    share = torch.tensor(1 / 3, dtype=torch.float64)

    def one_by_one() -> None:
        for gradient, view in zip(gradients, views, strict=True):
            torch.mul(gradient, share, out=view)

    num_bytes = 8 * sum(view.numel() for view in views)
    name = "pack, 100 tensors" + ("" if is_aligned else ", unaligned")
    ours = lambda: kernels.pack(gradients, views, 1 / 3)  # noqa: E731
    return Contest(name, num_bytes, ours, one_by_one, *_copy(device, num_bytes))


def _unpack(device: torch.device, moved_bytes: int) -> Contest:
    gradients, views = _bucket(device, moved_bytes, 0)
    num_bytes = 8 * sum(view.numel() for view in views)
    return Contest(
        "unpack, 100 tensors",
        num_bytes,
        lambda: kernels.unpack(views, gradients),
        lambda: torch._foreach_copy_(gradients, views),
        *_copy(device, num_bytes),
    )


def _squares(device: torch.device, moved_bytes: int) -> Contest:
    tensor = torch.ones(moved_bytes // 4, device=device)
    return Contest(
        "sum_of_squares, float32",
        4 * len(tensor),
        lambda: kernels.sum_of_squares(tensor),
        lambda: torch.linalg.vector_norm(tensor).square(),
        lambda: tensor.sum(),
        "read",
    )


def small_tensors(device: torch.device, num_tensors: int, num_elements: int = 1000) -> Contest:
    """Return the contest that launches decide: many tensors, few bytes. Local."""
    gradients = [torch.ones(num_elements, device=device) for _ in range(num_tensors)]
    bucket = torch.zeros(num_tensors * num_elements, device=device)
    views = list(bucket.split(num_elements))
    share = torch.tensor(1 / 3, dtype=torch.float64)

    def one_by_one() -> None:
        for gradient, view in zip(gradients, views, strict=True):
            torch.mul(gradient, share, out=view)

    return Contest(
        f"pack, {num_tensors} tensors of {num_elements} elements",
        8 * len(bucket),
        lambda: kernels.pack(gradients, views, 1 / 3),
        one_by_one,
        *_copy(device, 8 * len(bucket)),
    )


def _bucket(
    device: torch.device, moved_bytes: int, shift: int
) -> tuple[list[Tensor], list[Tensor]]:
    """100 gradients and their views; with a shift, no view starts at a multiple of 16 bytes."""
    length = moved_bytes // 8 // 100 // 16 * 16
    gradients = [torch.ones(length, device=device) for _ in range(100)]
    bucket = torch.zeros(100 * length + shift, device=device)
    return gradients, list(bucket[shift:].split(length))


def _copy(device: torch.device, moved_bytes: int) -> tuple[Work, str]:
    source = torch.ones(moved_bytes // 8, device=device)
    target = torch.zeros_like(source)
    return (lambda: target.copy_(source)), "copy"
