"""Each kernel on this device against its reference, at every dtype and at awkward lengths."""

from collections.abc import Callable

import torch
from torch import Tensor

from helpers import kernels
from helpers.kernels import reference
from helpers.kernels.dispatch import BLOCK, KERNEL_DTYPES

LENGTHS = (0, 1, 5, BLOCK, BLOCK + 1, 100_003)


def verdicts(device: torch.device) -> dict[str, str]:
    """Return for each kernel "equal bits", "within rounding", or by how much it is off. Local."""
    return {name: check(device) for name, check in _CHECKS.items()}


def _accumulates(device: torch.device) -> str:
    pairs = []
    for gradient in _tensors(device):
        total = torch.arange(len(gradient), dtype=torch.float32, device=device) / 7
        expected = reference.accumulate_(total.clone(), gradient, 1 / 3)
        pairs.append((kernels.accumulate_(total, gradient, 1 / 3), expected))
    return _compare(pairs)


def _packs(device: torch.device) -> str:
    pairs = []
    for dtype in KERNEL_DTYPES:
        tensors = [tensor for tensor in _tensors(device) if tensor.dtype == dtype]
        found, expected, back = ([torch.zeros_like(t) for t in tensors] for _ in range(3))
        kernels.pack(tensors, found, 1 / 3)
        reference.pack(tensors, expected, 1 / 3)
        kernels.unpack(found, back, 2.0)
        doubled = [2 * tensor for tensor in found]
        pairs += [*zip(found, expected, strict=True), *zip(back, doubled, strict=True)]
    return _compare(pairs)


def _sums_squares(device: torch.device) -> str:
    for tensor in _tensors(device):
        exact = tensor.double().square().sum()
        off = (kernels.sum_of_squares(tensor) - exact).abs()
        if off > 32 * 2**-24 * exact:  # some roundings on each element's way
            return f"off by {off.item():.3g} of {exact.item():.3g}, {tensor.dtype}"
    return "within rounding"


def _tensors(device: torch.device) -> list[Tensor]:
    """One of each dtype and length; every other one starts at an odd address."""
    generator = torch.Generator().manual_seed(0)
    tensors = []
    for dtype in KERNEL_DTYPES:
        for index, length in enumerate(LENGTHS):
            values = torch.randn(length + 1, generator=generator)
            tensors.append(values.to(device, dtype)[index % 2 :][:length])
    return tensors


def _compare(pairs: list[tuple[Tensor, Tensor]]) -> str:
    differing = [(f, e) for f, e in pairs if not torch.equal(f, e)]
    if not differing:
        return "equal bits"
    found, expected = differing[0]
    off = (found.double() - expected.double()).abs().max().item()
    return f"{len(differing)} of {len(pairs)} differ, the first ({found.dtype}) by up to {off:.3g}"


_CHECKS: dict[str, Callable[[torch.device], str]] = {
    "accumulate_": _accumulates,
    "pack, unpack": _packs,
    "sum_of_squares": _sums_squares,
}
