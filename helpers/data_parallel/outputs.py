"""What forward returns: which parameters lead to it, and a place to notice that backward starts."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge
from torch.utils import _pytree as pytree  # not public, and what torch's own wrappers use

from helpers.data_parallel.slots import Slot


def find_unused(outputs: Any, slots: Iterable[Slot]) -> list[Slot]:
    """Return the slots whose parameters do not lead to the outputs: a walk over the graph."""
    reached = _reachable(_tensors(outputs))
    return [slot for slot in slots if get_gradient_edge(slot.parameter).node not in reached]


def _reachable(tensors: Iterable[Tensor]) -> set[Node]:
    todo = [get_gradient_edge(tensor).node for tensor in tensors if tensor.requires_grad]
    seen = set(todo)
    while todo:
        for node, _ in todo.pop().next_functions:
            if node is not None and node not in seen:
                seen.add(node)
                todo.append(node)
    return seen


def _tensors(outputs: Any) -> Iterator[Tensor]:
    for leaf in pytree.tree_leaves(outputs):
        if isinstance(leaf, Tensor):
            yield leaf
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            yield from _tensors([getattr(leaf, each.name) for each in dataclasses.fields(leaf)])


def through_gate(
    outputs: Any, at_backward: Callable[[], object] = bool, clones: bool = True
) -> tuple[Any, bool]:
    """Return the outputs, equal and alike in structure, with a node of ours in their graph.

    And whether there is one: outputs may hold no tensor that torch's pytrees can see.

    An output that the loss does not use gets no gradient then, rather than zeros, and its
    parameters are reached with none; `at_backward` is called when backward comes by.
    clones: so that the loss may be changed in place; False saves the memory.
    """
    leaves, structure = pytree.tree_flatten(outputs)
    places = [i for i, x in enumerate(leaves) if isinstance(x, Tensor) and x.grad_fn is not None]
    if places:
        passed = _Gate.apply(at_backward, clones, *(leaves[place] for place in places))
        for place, tensor in zip(places, passed, strict=True):
            leaves[place] = tensor
    return pytree.tree_unflatten(leaves, structure), bool(places)


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, at_backward: Callable[[], object], clones: bool, *tensors: Tensor):
        ctx.set_materialize_grads(False)
        ctx.at_backward = at_backward
        return tuple(tensor.clone() for tensor in tensors) if clones else tensors

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None):
        ctx.at_backward()
        return None, None, *grads
