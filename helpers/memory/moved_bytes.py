"""Bytes that operators read and write, counted as they run."""

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

#: Torch does not call these views: one reshapes a product, the others only reserve memory.
MOVE_NOTHING = {
    "_unsafe_view",
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
}


class MovedBytes(TorchDispatchMode):
    """Count what operators read and write, and how many of them run, in this context. Local.

    ``bytes``: of every tensor that goes into an operator and every one that comes out, as if each
    were read or written once, from end to end. An operator in place reads its tensor and writes
    it. ``launches``: operators that moved something; on a GPU each is a kernel, or more than one.

    Views, and memory that is only reserved (`torch.empty`), move nothing and are not counted.
    Not seen: what a kernel reads twice or finds in a cache, and what it leaves out (a gather
    reads a part of its input). Built in chapter 09.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.launches = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        if not (operator.is_view or operator.overloadpacket.__name__ in MOVE_NOTHING):
            read = {name: each for name, each in (kwargs or {}).items() if name != "out"}
            moved = _tensors((args, read, result))
            self.bytes += sum(tensor.numel() * tensor.element_size() for tensor in moved)
            self.launches += bool(moved)
        return result


def _tensors(things: object) -> list[Tensor]:
    leaves = tree_leaves(things)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]
