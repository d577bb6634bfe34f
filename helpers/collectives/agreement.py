"""Is a tensor one that can be summed, and do all ranks of the group call alike?"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

#: What is added without surprise. A bool's sum is not a count, and float8 has no addition.
DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
)


def complaint(
    tensor: Tensor, group: dist.ProcessGroup, chunk: tuple[Tensor, str] | None
) -> str | None:
    """What is wrong with this rank's arguments, as found and expected; None: nothing. Local."""
    if chunk is None:
        return _oddity("tensor", tensor, group)
    part, part_name = chunk
    whole_name = "output" if part_name == "input" else "input"
    odd = _oddity(whole_name, tensor, group) or _oddity(part_name, part, group)
    if odd:
        return odd
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    length = tensor.numel() // world_size + (rank < tensor.numel() % world_size)
    expected = length, tensor.dtype, tensor.device
    found = part.numel(), part.dtype, part.device
    if found != expected:
        return f"{part_name}: found {_elements(*found)}, expected {_elements(*expected)}"
    return None


def _elements(length: int, dtype: torch.dtype, device: torch.device) -> str:
    return f"{length} elements of {dtype} on {device}"


def _oddity(name: str, tensor: Tensor, group: dist.ProcessGroup) -> str | None:
    kind = type(tensor)
    if not isinstance(tensor, Tensor):
        return f"{name}: found {kind.__name__}, expected a tensor"
    if kind not in (Tensor, nn.Parameter):  # its elements may not be what it stands for
        hint = " (see DTensor.to_local)" if hasattr(tensor, "to_local") else ""
        return f"{name}: found a {kind.__name__}, expected a plain tensor{hint}"
    if tensor.layout != torch.strided:
        return f"{name}: found {tensor.layout}, expected a dense tensor (see Tensor.to_dense)"
    if tensor.is_complex():
        return f"{name}: found {tensor.dtype}, expected torch.view_as_real of it"
    if tensor.dtype not in DTYPES:
        return f"{name}: found {tensor.dtype}, expected one of {', '.join(map(str, DTYPES))}"
    if tensor.requires_grad and torch.is_grad_enabled():
        return (
            f"{name}: found one that requires grad, which no sum in place can track; expected "
            "tensor.detach(), or a call under torch.no_grad()"
        )
    if any(
        step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True)
    ):
        return f"{name}: found an expanded tensor, several elements in one place; expected a clone"
    served = _served_devices(group)
    if tensor.device.type not in served:
        return f"{name}: found it on {tensor.device}, expected {' or '.join(served)} for this group"
    return None


def _served_devices(group: dist.ProcessGroup) -> list[str]:
    """Kinds of device between which this group sends messages: gloo does for the CPU only."""
    backends = [pair.partition(":") for pair in str(dist.get_backend_config(group)).split(",")]
    return [device for device, _, backend in backends if (device, backend) != ("cuda", "gloo")]


def assert_alike(name: str, tensor: Tensor, refused: str | None, group: dist.ProcessGroup) -> None:
    """Raise ValueError on every rank, saying which has what, unless all call alike.

    Every rank must call this. Compares algorithm, shape, dtype and kind of device, and tells all
    ranks of an argument that one of them has to refuse.
    """
    here = refused or (f"{name}, shape {tuple(tensor.shape)}, {tensor.dtype}, {tensor.device.type}")
    found = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, here, group=group)
    if len(set(found)) > 1 or refused:
        by_rank = [f"{_ranks(found, what)}: {what}" for what in dict.fromkeys(found)]
        raise ValueError("ranks do not call alike. " + "; ".join(by_rank))


def _ranks(found: list[str], what: str) -> str:
    ranks = [str(rank) for rank, there in enumerate(found) if there == what]
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}"
