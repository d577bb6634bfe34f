"""Whether a kernel may take a tensor's elements as one row, in the order of its memory."""

from torch import Tensor


def has_no_gaps(tensor: Tensor) -> bool:
    """Return whether its elements fill their memory, in whatever order of dimensions. Local."""
    if tensor.is_contiguous():
        return True
    order = sorted(range(tensor.ndim), key=lambda dim: -tensor.stride(dim))
    return tensor.permute(order).is_contiguous()


def same_order(first: Tensor, second: Tensor) -> bool:
    """Return whether equal places in memory hold equal places of both, without gaps. Local."""
    if first.is_contiguous() and second.is_contiguous():
        return True
    return first.stride() == second.stride() and has_no_gaps(first)
