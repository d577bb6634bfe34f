"""One all-reduce for all: by the algorithm that is named, or that the link makes cheapest."""

import torch.distributed as dist
from torch import Tensor

from helpers import cost_model
from helpers.collectives.calls import opened
from helpers.collectives.doubling import all_reduce_doubling
from helpers.collectives.gather_broadcast import all_reduce_gather_broadcast
from helpers.collectives.halving_doubling import all_reduce_halving_doubling
from helpers.collectives.ring import all_reduce_ring
from helpers.collectives.tree import all_reduce_tree
from helpers.link import LINKS, Link, link_of

#: The five ways, by name.
ALGORITHMS = {
    "gather_broadcast": all_reduce_gather_broadcast,
    "tree": all_reduce_tree,
    "ring": all_reduce_ring,
    "doubling": all_reduce_doubling,
    "halving_doubling": all_reduce_halving_doubling,
}

#: gloo between processes of one host, as measured: some tenths of a millisecond a message, most
#: of it waking up the other process; about 1 GB/s through the kernel's loopback and the sum.
LOOPBACK = Link(0.3e-3, 1.0)


def all_reduce(
    tensor: Tensor,
    group: dist.ProcessGroup | None = None,
    *,
    algorithm: str = "auto",
    async_op: bool = False,
    check: bool = False,
) -> dist.Work | None:
    """Sum `tensor` over the ranks of the group, in place. Every rank must call this.

    `tensor`: any shape and strides, equal shapes and dtypes on all ranks; float64, float32,
    float16, bfloat16 (summed in that dtype, rounded at each step) or an integer type; on a
    device that the group serves. Afterwards it has the same bits on every rank, but for the
    payload of a NaN. Tensor subclasses but nn.Parameter are refused.
    `group`: None is the default group; ranks below are the group's own.
    `algorithm`: one of ALGORITHMS, or "auto", which takes what `cost_model.choose` predicts to be
    fastest on this group's link: the emulated one, else `default_link`. All ranks choose alike.
    `async_op`: False returns None when the sum is there. True returns a Work at once: `tensor`
    is not to be touched before its `wait()`, which also raises what went wrong. Several may be
    in flight; each draws a tag, in the order of calls, which must be the same on all ranks.
    `check`: True has the ranks compare algorithm, shape and dtype first, at the price of a small
    all_gather, and raises ValueError on every rank where they differ. Without it different
    lengths end in ConnectionError after the group's timeout, in wrong sums, or, where more comes
    than there is room for, with gloo ending the process (SIGABRT).

    Raises ValueError, naming what was found and expected: a tensor that is sparse, expanded,
    bool, complex, on another device (meta), or requires grad while gradients are recorded.
    ConnectionError where a rank has ended or is not heard of within the timeout: it names the
    neighbour and the step; the tensor then holds a sum half done. RuntimeError without a group.
    Chapter 08 builds the algorithms, and finds where each of them wins.
    """
    if algorithm == "auto":
        algorithm = _choose(tensor, opened(group))
    if algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm: found {algorithm!r}, expected auto or one of {[*ALGORITHMS]}")
    return ALGORITHMS[algorithm](tensor, group, async_op=async_op, check=check)


def default_link(tensor: Tensor) -> Link:
    """Return the link that "auto" assumes where none is emulated. Local.

    On a GPU, NVLink of the fourth generation; on the CPU, gloo on loopback. Where ranks are
    joined otherwise, name the algorithm.
    """
    return LINKS["nvlink4"] if tensor.is_cuda else LOOPBACK


def _choose(tensor: Tensor, group: dist.ProcessGroup) -> str:
    if not isinstance(tensor, Tensor):
        return "ring"  # which refuses it, as all do
    size_bytes = tensor.numel() * tensor.element_size()
    link = link_of(group) or default_link(tensor)
    return cost_model.choose(size_bytes, dist.get_world_size(group), link)
