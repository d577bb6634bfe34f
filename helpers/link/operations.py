"""What each collective of a process group is called, is priced by, and is run by in gloo."""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor


def num_bytes(tensors: Tensor | list | tuple) -> int:
    """Bytes of all tensors in a nest of lists."""
    if isinstance(tensors, Tensor):
        return tensors.numel() * tensors.element_size()
    return sum(map(num_bytes, tensors))


def _all(tensors: Any, _others: Any, _n: int) -> int:
    return num_bytes(tensors)


def _all_inputs(_outputs: Any, inputs: Any, _n: int) -> int:
    return num_bytes(inputs)


def _n_inputs(_outputs: Any, inputs: Any, n: int) -> int:
    return n * num_bytes(inputs)


def _n_outputs(outputs: Any, _inputs: Any, n: int) -> int:
    return n * num_bytes(outputs)


class _Together:
    """Several real operations that are one for the link."""

    def __init__(self, works: list[dist.Work]) -> None:
        self._works = works

    def wait(self) -> None:
        for work in self._works:
            work.wait()


def _each(gloo_name: str) -> Callable:
    """What gloo has for one pair of tensors, for lists of them."""

    def start(gloo: Any, outputs: list[Tensor], inputs: list[Tensor], *options: Any) -> _Together:
        pairs = zip(outputs, inputs, strict=True)
        return _Together([getattr(gloo, gloo_name)(*pair, *options) for pair in pairs])

    return start


#: Method of ProcessGroup -> (collective, the bytes that it is priced by, gloo's method).
#: What a rank knows must give all ranks the same price: the root's list is not on every rank.
COLLECTIVES: dict[str, tuple[str, Callable[[Any, Any, int], int], str | Callable]] = {
    "allreduce": ("all_reduce", _all, "allreduce"),
    "allreduce_coalesced": ("all_reduce", _all, "allreduce_coalesced"),
    "broadcast": ("broadcast", _all, "broadcast"),
    "reduce": ("reduce", _all, "reduce"),
    "allgather": ("all_gather", _n_inputs, "allgather"),
    "allgather_coalesced": ("all_gather", _n_inputs, "allgather_coalesced"),
    "all_gather_single": ("all_gather", _n_inputs, "_allgather_base"),
    "_allgather_base": ("all_gather", _n_inputs, "_allgather_base"),
    "reduce_scatter": ("reduce_scatter", _n_outputs, "reduce_scatter"),
    "reduce_scatter_single": ("reduce_scatter", _n_outputs, "_reduce_scatter_base"),
    "_reduce_scatter_base": ("reduce_scatter", _n_outputs, "_reduce_scatter_base"),
    "allgather_into_tensor_coalesced": ("all_gather", _n_inputs, _each("_allgather_base")),
    "all_gather_single_coalesced": ("all_gather", _n_inputs, _each("_allgather_base")),
    "reduce_scatter_tensor_coalesced": (
        "reduce_scatter", _n_outputs, _each("_reduce_scatter_base"),
    ),
    "reduce_scatter_single_coalesced": (
        "reduce_scatter", _n_outputs, _each("_reduce_scatter_base"),
    ),
    "gather": ("gather", _n_inputs, "gather"),
    "scatter": ("scatter", _n_outputs, "scatter"),
    "alltoall": ("all_to_all", _all_inputs, "alltoall"),
    "all_to_all_single": ("all_to_all", _all_inputs, "alltoall_base"),
    "alltoall_base": ("all_to_all", _all_inputs, "alltoall_base"),
}  # fmt: skip
