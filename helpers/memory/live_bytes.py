"""Bytes in use, counted storage by storage as operators make them and as they die."""

import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

# Hands out memory that was made where no dispatch mode looks: torch.tensor, torch.from_numpy.
_BORN_UNSEEN = {torch.ops.aten.lift_fresh.default}
_LEAVES = (int, float, str, torch.dtype, torch.device, torch.layout, type(None))


@dataclass(frozen=True)
class Phase:
    """Bytes alive at a phase's end, the most during it, and its end as an index of the history."""

    live_bytes: int
    peak_bytes: int
    end: int


class LiveBytes(TorchDispatchMode):
    """Count the bytes of all tensors that are born while this context is open. Local.

    ``live_bytes`` is what of them is still alive, ``peak_bytes`` the most that ever was. A storage
    counts once, however many views share it, with the size it was asked for; it is taken off when
    its last tensor dies, also after the context has closed. The same program gives the same number
    on every run and machine, on real tensors (any device), fake ones and ``device="meta"``.

    Not counted: a storage made before the context (unless ``include`` names it), not even when it
    grows; scratch memory inside one kernel; what C++ allocates out of the dispatcher's sight (the
    reducer of torch's DistributedDataParallel made before the context); sparse tensors; the
    allocator's rounding (CUDA: to 512 bytes), cache and context. Built in chapter 02.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live_bytes = 0
        self.peak_bytes = 0
        #: live_bytes after every change, in order: the curve of memory over a step.
        self.history: list[int] = []
        #: What ``mark`` noted, by name.
        self.phases: dict[str, Phase] = {}
        self._size: dict[int, int] = {}

    def include(self, *things: object) -> "LiveBytes":
        """Count what is there already, too (as storage_bytes takes it), and return self."""
        for storage in _storages(_checked(things)):
            self._count(storage)
        return self

    def reset_peak(self) -> None:
        """Start a new peak from what is alive now."""
        self.peak_bytes = self.live_bytes

    def mark(self, name: str) -> None:
        """Note in ``phases[name]`` that the phase since the last mark ends here."""
        if name in self.phases:
            raise ValueError(f"found a second mark {name!r}, expected a name of its own")
        start = next(reversed(self.phases.values())).end if self.phases else 0
        curve = self.history[max(start - 1, 0) :] or [0]
        self.phases[name] = Phase(self.live_bytes, max(curve), len(self.history))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run one operator; every storage in its result that it was not given is new."""
        kwargs = kwargs or {}
        given = {id(storage) for storage in _storages((args, kwargs))}
        result = func(*args, **kwargs)
        for storage in _storages(result):
            # A known storage is looked at again: resize_ and out= change its size.
            is_known = id(storage) in self._size
            if is_known or id(storage) not in given or func in _BORN_UNSEEN:
                self._count(storage)
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        # PyTorch keeps one Python object per storage for as long as the storage lives, so its id
        # is a key until the finalizer runs.
        key = id(storage)
        if key not in self._size:
            weakref.finalize(storage, self._forget, key).atexit = False
        self._change(storage.nbytes() - self._size.get(key, 0))
        self._size[key] = storage.nbytes()

    def _forget(self, key: int) -> None:
        self._change(-self._size.pop(key))

    def _change(self, difference_bytes: int) -> None:
        if difference_bytes:
            self.live_bytes += difference_bytes
            self.peak_bytes = max(self.peak_bytes, self.live_bytes)
            self.history.append(self.live_bytes)


def _storages(tree: object) -> Iterator[torch.UntypedStorage]:
    if isinstance(tree, torch.Tensor):
        if tree.layout == torch.strided:
            yield tree.untyped_storage()
    elif isinstance(tree, _LEAVES):  # most arguments; the questions below are slow
        return
    elif isinstance(tree, nn.Module):
        yield from _storages([*tree.parameters(), *tree.buffers()])
    elif isinstance(tree, torch.optim.Optimizer):
        yield from _storages(tree.state)
    elif isinstance(tree, Mapping | list | tuple | Iterator):
        for part in tree.values() if isinstance(tree, Mapping) else tree:
            yield from _storages(part)


def _checked(things: tuple) -> tuple:
    known = (
        torch.Tensor | nn.Module | torch.optim.Optimizer | Mapping | list | tuple | Iterator | None
    )
    for thing in things:
        if not isinstance(thing, known):
            raise TypeError(
                f"found {type(thing).__name__}, expected a tensor, a module, an optimizer, "
                "or a dict, list, tuple or iterator of them"
            )
    return things


def storage_bytes(*things: object) -> int:
    """Return the bytes of the distinct storages behind tensors, modules, optimizers. Local.

    A module counts with parameters and buffers (not gradients), an optimizer with its state;
    two tensors on one storage count once. Built in chapter 02.
    """
    return sum({id(storage): storage.nbytes() for storage in _storages(_checked(things))}.values())


def saved_activation_bytes(forward: Callable[..., object], *inputs: object) -> int:
    """Return the bytes that ``forward(*inputs)`` makes and its graph keeps for backward. Local.

    Counted through autograd's saved-tensor hooks, so independent of LiveBytes: distinct storages
    born during the call, hence without parameters and inputs. A checkpointed region
    (``torch.utils.checkpoint``) hides from these hooks: there use LiveBytes. Chapter 02.
    """
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.update((id(storage), storage) for storage in _storages(tensor))
        return tensor

    with LiveBytes() as memory, torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved):
        forward(*inputs)
    return sum(storage.nbytes() for key, storage in kept.items() if key in memory._size)
