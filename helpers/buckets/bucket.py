"""One flat buffer, and a view into it for each parameter's gradient."""

import itertools
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from helpers.kernels.memory_order import has_no_gaps


class Bucket:
    """Gradients of some parameters, side by side in one flat buffer. Local.

    buffer: [N], zeros at first, of the parameters' dtype and device, N their elements together.
    views: a tensor into the buffer for each parameter, of its shape; with its strides too where
    it fills its memory without gaps (channels_last), so that a gradient in the parameter's own
    layout is copied straight through. offsets: of each view in the buffer, in elements.
    empty: makes the buffer, from (number of elements, dtype, device); None: torch.zeros.

    Raises ValueError without parameters, and where they differ in dtype or device.
    Source: arXiv:2006.15704, section 4.2. Built in chapter 10.
    """

    def __init__(
        self, parameters: Iterable[Tensor], empty: Callable[..., Tensor] | None = None
    ) -> None:
        self.parameters = list(parameters)
        kinds = {(p.dtype, p.device) for p in self.parameters}
        if len(kinds) != 1:
            found = sorted(f"{dtype} on {device}" for dtype, device in kinds) or "no parameters"
            raise ValueError(f"bucket: found {found}, expected one dtype and one device")
        (dtype, device) = kinds.pop()
        lengths = [p.numel() for p in self.parameters]
        self.offsets = [0, *itertools.accumulate(lengths)][:-1]
        make = empty or _zeros
        self.buffer = make(sum(lengths), dtype, device)
        self.views = list(map(self._view, self.parameters, self.offsets))

    @property
    def size_bytes(self) -> int:
        return self.buffer.numel() * self.buffer.element_size()

    def _view(self, parameter: Tensor, offset: int) -> Tensor:
        if has_no_gaps(parameter):
            return self.buffer.as_strided(parameter.shape, parameter.stride(), offset)
        return self.buffer[offset : offset + parameter.numel()].view(parameter.shape)


def _zeros(num_elements: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.zeros(num_elements, dtype=dtype, device=device)
