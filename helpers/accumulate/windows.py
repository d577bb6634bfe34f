"""Batches put together into windows, and cut into micro-batches."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from torch import Tensor


def windows(batches: Iterable[Any], num_micro_batches: int) -> Iterator[list[Any]]:
    """Return an iterator over lists of num_micro_batches consecutive batches. Local.

    Lazy: it holds one window at a time, so that batches may be endless. The last window is
    shorter where the batches do not divide, and is not dropped. No batches, no window.
    Raises ValueError where num_micro_batches is below 1.
    """
    if num_micro_batches < 1:
        raise ValueError(f"{num_micro_batches} micro-batches in a window, expected at least 1")
    iterator = iter(batches)
    return iter(lambda: list(islice(iterator, num_micro_batches)), [])


def split_batch(batch: Any, micro_batch_size: int) -> list[Any]:
    """Return the batch cut into micro-batches along dimension 0, in order; views. Local.

    A batch is a tensor, or a tuple, named tuple, list or dict of such. The last micro-batch is
    shorter where the batch does not divide; a batch of no samples gives an empty list.
    Raises ValueError where micro_batch_size is below 1 or the tensors' lengths differ, and
    TypeError, naming the place, where the batch holds something else than tensors.
    """
    if micro_batch_size < 1:
        raise ValueError(f"a micro-batch of {micro_batch_size} samples, expected at least 1")
    starts = range(0, num_samples(batch), micro_batch_size)
    return [cut(batch, slice(start, start + micro_batch_size)) for start in starts]


def num_samples(batch: Any) -> int:
    """Return the one length that all tensors of the batch have along dimension 0. Local.

    Raises ValueError where their lengths differ, and TypeError as `split_batch` does.
    """
    lengths = {len(tensor) for tensor in _tensors(batch)}
    if len(lengths) != 1:
        raise ValueError(f"tensors of {sorted(lengths)} samples in a batch, expected one length")
    return lengths.pop()


def _tensors(batch: Any, place: str = "batch") -> Iterator[Tensor]:
    if isinstance(batch, Tensor) and batch.ndim:
        yield batch
    elif isinstance(batch, Mapping | tuple | list):
        parts = batch.items() if isinstance(batch, Mapping) else enumerate(batch)
        for key, part in parts:
            yield from _tensors(part, f"{place}[{key!r}]")
    else:
        found = "a tensor of no dimensions" if isinstance(batch, Tensor) else type(batch).__name__
        expected = "a tensor with a dimension of samples, or a tuple, list or dict of such"
        raise TypeError(f"{place}: found {found}, expected {expected}")


def cut(batch: Any, samples: slice) -> Any:
    """Return the batch's samples of this slice; views. Local."""
    return map_tensors(batch, lambda tensor: tensor[samples])


def map_tensors(batch: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Return the batch with each tensor replaced by function(tensor). Local."""
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, Mapping):
        return {key: map_tensors(part, function) for key, part in batch.items()}
    parts = [map_tensors(part, function) for part in batch]
    return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
