"""Tensors that claim another device than the CPU, and keep their numbers there all the same.

A stand-in for a GPU where there is none. It is strict about what is where: an operator that is
given tensors of both kinds raises WrongDevice, as CUDA does, and every collective is noted with
the devices of its tensors. It says nothing of streams, of NCCL, of rounding, or of time.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

#: "meta", because autograd on it needs no driver.
FOREIGN, CPU = torch.device("meta"), torch.device("cpu")
#: What may be given tensors of both.
MOVES = ("_to_copy", "copy_", "lift_fresh")


class WrongDevice(RuntimeError):
    """An operator was given tensors on two devices."""


class Sent(NamedTuple):
    """A collective or a message: its operator, and the kinds of device of its tensors."""

    name: str
    devices: set[str]


class ForeignTensor(Tensor):
    """A tensor on FOREIGN; `inner` has its numbers, on the CPU."""

    is_meta = False  # it has numbers

    @staticmethod
    def __new__(cls, inner: Tensor) -> "ForeignTensor":
        tensor = Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(),
            dtype=inner.dtype, device=FOREIGN,
        )  # fmt: skip
        tensor.inner = inner
        return tensor

    @classmethod
    def __torch_dispatch__(cls, operator, types, args=(), kwargs=None):
        return _run(operator, args, kwargs or {})

    @property
    def data(self) -> Tensor:
        return ForeignTensor(self.inner)

    @data.setter
    def data(self, value: Tensor) -> None:
        self.inner = value.inner

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def tolist(self) -> Any:
        return self.inner.tolist()


class _Factories(TorchDispatchMode):
    """Makes new tensors foreign where that is asked for."""

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        return _run(operator, args, kwargs or {})


_sent: list[Sent] = []
_objects = 0  # how many collectives of Python objects are under way


@contextmanager
def foreign_device() -> Iterator[list[Sent]]:
    """Have torch make foreign tensors inside; yield what is sent, but for Python objects. Local."""
    gather, tensor = dist.all_gather_object, torch.tensor

    def make_tensor(data: Any, *, device: Any = None, **options: Any) -> Tensor:  # sees no mode
        made = tensor(data, **options)
        return made if device is None else made.to(device)

    def gather_unseen(*arguments: Any, **options: Any) -> None:
        global _objects
        _objects += 1
        try:
            gather(*arguments, **options)
        finally:
            _objects -= 1

    _sent.clear()
    dist.all_gather_object, torch.tensor = gather_unseen, make_tensor
    try:
        with _Factories():
            yield _sent
    finally:
        dist.all_gather_object, torch.tensor = gather, tensor


def _run(operator: Any, args: tuple, kwargs: dict) -> Any:
    name = operator._schema.name.partition("::")[2]
    values, structure = pytree.tree_flatten((args, kwargs))
    tensors = [value for value in values if isinstance(value, Tensor)]
    foreign = [tensor for tensor in tensors if isinstance(tensor, ForeignTensor)]
    if operator.namespace == "c10d" and tensors and not _objects:
        _sent.append(Sent(name, {tensor.device.type for tensor in tensors}))
    # A single number on the CPU may go along, as with CUDA.
    here = [t for t in tensors if not isinstance(t, ForeignTensor) and t.ndim]
    if foreign and here and name not in MOVES:
        raise WrongDevice(f"{name}: {len(foreign)} tensors on {FOREIGN}, {len(here)} on the CPU")
    args, kwargs = pytree.tree_unflatten([_inner(value) for value in values], structure)
    result = operator(*args, **kwargs)
    if name == "copy_":
        return tensors[0]
    asked = next((torch.device(v) for v in values if isinstance(v, torch.device)), None)
    if (asked or (FOREIGN if foreign else CPU)) != FOREIGN:
        return result
    known = {id(tensor.inner): tensor for tensor in foreign}
    return pytree.tree_map(lambda value: _outer(value, known), result)


def _inner(value: Any) -> Any:
    if isinstance(value, ForeignTensor):
        return value.inner
    return CPU if isinstance(value, torch.device) and value == FOREIGN else value


def _outer(value: Any, known: dict[int, Tensor]) -> Any:
    if not isinstance(value, Tensor) or isinstance(value, ForeignTensor):
        return value
    return known[id(value)] if id(value) in known else ForeignTensor(value)
