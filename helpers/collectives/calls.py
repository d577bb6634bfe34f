"""What every collective by hand does around its steps: check, draw a tag, run, hand back."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from helpers.collectives.agreement import assert_alike, complaint
from helpers.collectives.peers import Peers, next_tag
from helpers.collectives.work import start


def sum_in_place(
    name: str,
    steps: Callable[[Tensor, Peers], None],
    tensor: Tensor,
    group: dist.ProcessGroup | None,
    async_op: bool,
    check: bool,
) -> dist.Work | None:
    """Run the steps of an all-reduce on the tensor's elements in one row, whatever its strides."""

    def on_flat(peers: Peers) -> None:
        flat = flat_of(tensor)
        steps(flat, peers)
        write_back(flat, tensor)

    return run(name, on_flat, tensor, group, async_op, check)


def run(
    name: str,
    steps: Callable[[Peers], None],
    tensor: Tensor,
    group: dist.ProcessGroup | None,
    async_op: bool,
    check: bool,
    chunk: tuple[Tensor, str] | None = None,
) -> dist.Work | None:
    """Check the arguments, then run the steps: now, or in the background and return a Work.

    `chunk`: a second tensor and its name, which must be as long as this rank's chunk of `tensor`.
    """
    group = opened(group)
    tag = next_tag(group)  # first of all: a call that is refused here keeps its place in the order
    refused = complaint(tensor, group, chunk)
    if check:
        assert_alike(name, tensor, refused, group)
    if refused:
        raise ValueError(f"rank {dist.get_rank(group)}: {refused}")
    mode = torch.inference_mode if tensor.is_inference() else torch.no_grad

    def in_mode() -> None:  # a thread does not inherit it
        with mode():
            steps(Peers(group, name, tag))

    if async_op:
        return start(in_mode, tensor)
    in_mode()
    return None


def opened(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """Return the group, the default one for None; raise where this process is in none."""
    if not dist.is_initialized():
        raise RuntimeError("no process group is open, expected `with process_group():` around")
    group = dist.group.WORLD if group is None else group
    if not isinstance(group, dist.ProcessGroup):
        raise ValueError("this process is not in the group, expected a call on its members only")
    return group


def flat_of(tensor: Tensor) -> Tensor:
    """Return the elements as one contiguous row: a view where the tensor's memory is that."""
    return tensor.detach().resolve_neg().contiguous().view(-1)


def write_back(flat: Tensor, tensor: Tensor) -> None:
    """Copy the row to the tensor that `flat_of` took it from, unless it is a view of it."""
    if flat.data_ptr() != tensor.data_ptr():
        tensor.copy_(flat.view_as(tensor))
