"""What the kernels refuse, by name: the same on a GPU as with the references."""

from collections.abc import Sequence

import torch
from torch import Tensor


def check_dtype(tensor: Tensor, what: str, *expected: torch.dtype) -> None:
    if tensor.dtype not in expected:
        names = " or ".join(str(dtype) for dtype in expected)
        raise TypeError(f"{what}: found {tensor.dtype}, expected {names}")


def check_floating(tensor: Tensor, what: str) -> None:
    if not tensor.is_floating_point():
        raise TypeError(f"{what}: found {tensor.dtype}, expected a floating-point dtype")


def check_dense(tensor: Tensor, what: str) -> None:
    if tensor.layout != torch.strided:
        raise TypeError(f"{what}: found a tensor of layout {tensor.layout}, expected a dense one")


def check_alike(first: Tensor, second: Tensor, what: str) -> None:
    """Raise ValueError unless both have one shape and lie on one device."""
    found = [(tuple(tensor.shape), str(tensor.device)) for tensor in (first, second)]
    if found[0] != found[1]:
        raise ValueError(f"{what}: found {found[1]}, expected {found[0]}, as the other's")


def check_pairs(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    """Raise unless each source has a target of its shape, all of one dtype and device."""
    if len(sources) != len(targets):
        raise ValueError(f"found {len(sources)} tensors and {len(targets)} views, expected as many")
    kinds = {(t.dtype, t.device) for t in (*sources, *targets)}
    if len(kinds) > 1:
        found = sorted(f"{dtype} on {device}" for dtype, device in kinds)
        raise TypeError(f"found {found}, expected one dtype and one device")
    for index, (source, target) in enumerate(zip(sources, targets, strict=True)):
        check_dense(source, f"tensor {index}")
        check_floating(source, f"tensor {index}")
        check_alike(source, target, f"pair {index}")
