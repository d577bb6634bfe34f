"""How far apart tensors are: relative errors that name their worst tensor."""

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

Tensors = Tensor | None | Sequence["Tensors"] | Mapping[str, "Tensors"]


class RelativeError(float):
    """A relative error that knows its worst tensor: `worst` is that tensor's name, or None."""

    worst: str | None = None

    def __repr__(self) -> str:
        where = f", worst in {self.worst}" if self.worst else ""
        return f"{float(self):.1e}{where}"

    __str__ = __repr__


def gradients(module: nn.Module) -> dict[str, Tensor | None]:
    """Return copies of the gradients by parameter name; None where there is none yet. Local."""
    grads = {name: parameter.grad for name, parameter in module.named_parameters()}
    return {name: None if grad is None else grad.detach().clone() for name, grad in grads.items()}


def relative_error(a: Tensors, b: Tensors) -> RelativeError:
    """Return |a - b| / |b|, Euclidean norms over all numbers together, a float. Local.

    a and b are tensors, or lists or dicts of them (of such), alike in names, shapes and dtypes;
    None stands for a gradient that is not there. b is the reference. One norm over all of them,
    because single tensors may be zero but for rounding (a bias before BatchNorm). The result's
    `worst` names the tensor that adds most; where both are zero it is 0; NaN makes it NaN,
    which is below no bound.

    Raises ValueError, naming the tensor, where a and b are not alike, or where one is sparse or
    on the meta device; and where neither holds a tensor. Chapter 03 uses it first.
    """
    left, right = dict(_named(a)), dict(_named(b))
    if left.keys() != right.keys():
        odd = sorted(left.keys() ^ right.keys())
        raise ValueError(f"only one of the two has {', '.join(odd)}")
    if all(x is None for x in (*left.values(), *right.values())):
        raise ValueError(f"nothing to compare: found {len(left)} times None, expected a tensor")
    squares = {name: squared_error(name, left[name], right[name]) for name in left}
    difference = math.fsum(square for square, _ in squares.values())
    reference = math.fsum(square for _, square in squares.values())
    if difference == 0:
        return RelativeError(0.0)
    error = RelativeError(math.sqrt(difference / reference) if reference else math.inf)
    squared = {name: math.inf if math.isnan(x) else x for name, (x, _) in squares.items()}
    error.worst = max(squared, key=squared.get) or None
    return error


def _named(value: Tensors, name: str = "") -> Iterator[tuple[str, Tensor | None]]:
    """Yield (name, tensor): dicts give keys, sequences give [index], a lone tensor has no name."""
    if value is None or isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _named(part, f"{name}.{key}" if name else str(key))
    else:
        for index, part in enumerate(value):
            yield from _named(part, f"{name}[{index}]")


def squared_error(name: str, a: Tensor | None, b: Tensor | None) -> tuple[float, float]:
    """Return |a - b|^2 and |b|^2, in float64; raise ValueError unless they are alike."""
    found, expected = (None if x is None else (tuple(x.shape), x.dtype) for x in (a, b))
    if found != expected:
        raise ValueError(f"{name or 'tensor'}: found {found}, expected {expected}")
    if a is None or b is None:
        return 0.0, 0.0
    for x in (a, b):
        check_dense({name or "tensor": x})
    a, b = (wide(x).cpu() for x in (a, b))
    return differences(a, b).square().sum().item(), b.double().square().sum().item()


def check_dense(tensors: Mapping[str, Tensor]) -> None:
    for name, x in tensors.items():
        if oddity(x):
            raise ValueError(f"{name}: found a {oddity(x)} tensor, expected a dense one")


def oddity(x: Tensor) -> str:
    """Why its numbers cannot be compared one by one: "meta", "torch.sparse_coo"; or ""."""
    return "meta" if x.is_meta else "" if x.layout == torch.strided else str(x.layout)


def wide(x: Tensor) -> Tensor:
    """Return the same numbers in float64, complex ones as pairs; or int64, which float64 rounds."""
    x = x.detach()
    if x.is_complex():
        return torch.view_as_real(x.to(torch.complex128).resolve_conj())
    return x.to(torch.float64 if x.is_floating_point() else torch.int64)


def differences(a: Tensor, b: Tensor) -> Tensor:
    """Return |a - b| in float64, zero only where they are equal (large integers round to equal)."""
    distances = (a.double() - b.double()).abs()
    return torch.where((a != b) & (distances == 0), 1.0, distances)
