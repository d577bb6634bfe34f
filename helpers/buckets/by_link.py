"""Buckets for one link: the plan with the earliest predicted end."""

import itertools
from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor

from helpers.cost_model import all_reduce_s, best_cuts
from helpers.cost_model.predict import LinkLike


def size_bytes(tensor: Tensor) -> int:
    """The bytes of its elements. Local."""
    return tensor.numel() * tensor.element_size()


def by_link(
    parameters: list[Tensor],
    link: LinkLike,
    ready_s: Sequence[float] | None,
    world_size: int | None,
) -> list[list[Tensor]]:
    """See `plan_buckets`, which calls this. Local."""
    world_size = _world_size(link, world_size)
    sizes = list(map(size_bytes, parameters))
    if ready_s is None:
        ready_s = _in_proportion(sizes, all_reduce_s("ring", sum(sizes), world_size, link))
    if len(ready_s) != len(parameters):
        raise ValueError(
            f"ready_s: found {len(ready_s)} times, expected {len(parameters)}, one a parameter"
        )
    # Sent in the order of the parameters: one cannot leave before those ahead of it are ready.
    ready_s = list(itertools.accumulate(ready_s, max))
    plan = []
    for indices in _kinds(parameters):
        cuts = best_cuts(
            [sizes[i] for i in indices], [ready_s[i] for i in indices], world_size, link
        )
        runs = itertools.pairwise([0, *cuts])
        plan += [indices[start:end] for start, end in runs]
    # A stable sort: buckets of one kind stay in their order.
    plan.sort(key=lambda bucket: ready_s[bucket[-1]])
    return [[parameters[i] for i in bucket] for bucket in plan]


def _kinds(parameters: list[Tensor]) -> list[list[int]]:
    """The indices of the parameters of each dtype and device."""
    kinds: dict[tuple, list[int]] = {}
    for index, parameter in enumerate(parameters):
        kinds.setdefault((parameter.dtype, parameter.device), []).append(index)
    return list(kinds.values())


def _in_proportion(sizes: list[int], whole_s: float) -> list[float]:
    total = sum(sizes) or 1
    return [whole_s * upto / total for upto in itertools.accumulate(sizes)]


def _world_size(link: LinkLike, world_size: int | None) -> int:
    found = getattr(link, "world_size", None) or world_size
    if found is None and dist.is_initialized():
        found = dist.get_world_size()
    if found is None:
        raise ValueError("world_size: found None, no group is open, and the link has none")
    return found
