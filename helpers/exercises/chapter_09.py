"""Checks of chapter 09: a tail mask, wide loads read off the PTX, the bytes of clipping."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from helpers.exercises.checking import NotWritten, Wrong, exercise
from helpers.kernels.ptx import Source, bytes_moved, compile_to_ptx
from helpers.kernels.text import KernelText
from helpers.launch import RankFailed, run_function

BLOCK, GUARD = 256, -7.0
#: Fewer than a block, one exactly, one and one more, several and a tail that is even.
LENGTHS = (1, 48, BLOCK, BLOCK + 1, 5 * BLOCK - 16)


@exercise("09-tail")
def tail(solution: Any) -> None:
    """solution: kernel(target, source, factor, n, BLOCK), in blocks: target = factor * source."""
    _interpreted(_multiplies, solution)


@exercise("09-wide")
def wide(solution: Any) -> None:
    """solution: kernel(target, address, n, BLOCK), in blocks: target = what lies at an address.

    address: of float32, in an int64 of its own. All of its loads and stores move 16 bytes.
    """
    _interpreted(_copies, solution)
    arguments = {"target": "*fp32", "address": "*i64", "n": "i32", "BLOCK": 4 * BLOCK}
    source = Source(KernelText.of(solution), arguments, num_warps=4)
    (by_capability,) = compile_to_ptx([source], [90])
    for what, name in (("ld.global", "loads"), ("st.global", "stores")):
        widths = bytes_moved(by_capability[90], what)
        widths[8] -= what == "ld.global"  # the address itself
        narrow = {width: count for width, count in widths.items() if count > 0 and width < 16}
        if narrow:
            width, count = min(narrow.items())
            raise Wrong(f"{count} {name} of {width} bytes in the PTX, expected 16 bytes in each")


def _interpreted(check: Callable[[KernelText], str | None], solution: Any) -> None:
    """Run a check where Triton interprets: a notebook on a GPU machine does not."""
    kernel = KernelText.of(solution)
    if "raise NotImplementedError" in kernel.text:
        raise NotWritten
    environment = {"TRITON_INTERPRET": "1"}
    try:
        (fault,) = run_function(check, kernel, nproc_per_node=1, env=environment)
    except RankFailed as failed:
        first_line, *_ = failed.message.splitlines()
        raise Wrong(f"{failed.exception_type}: {first_line}") from None
    if fault:
        raise Wrong(fault)


def _multiplies(kernel: KernelText) -> str | None:
    return _judge(kernel, 3.0, lambda source: (source, 3.0))


def _copies(kernel: KernelText) -> str | None:
    return _judge(kernel, 1.0, lambda source: (torch.tensor([source.data_ptr()]),))


def _judge(
    kernel: KernelText, factor: float, arguments: Callable[[torch.Tensor], tuple]
) -> str | None:
    loaded = kernel.load()
    for length in LENGTHS:
        source = torch.arange(1.0, length + 1)
        buffer = torch.full((length + 2 * BLOCK,), GUARD)
        target = buffer[:length]
        grid = (-(-length // BLOCK),)
        loaded[grid](target, *arguments(source), length, BLOCK=BLOCK)
        written = int((buffer[length:] != GUARD).sum())
        if written:
            return f"length {length}: {written} elements behind the tensor are overwritten"
        off = (target != factor * source).nonzero()
        if len(off):
            place = int(off[0])
            return (
                f"length {length}: element {place} is {target[place].item():g}, "
                f"expected {factor * source[place].item():g}"
            )
    return None


@exercise("09-clip")
def clip(solution: Callable[[], Mapping[str, int]]) -> None:
    """solution() -> bytes an element of float32 for each of two ways to unpack and clip."""
    found = solution()
    # unpack reads and writes; the norm reads; clipping reads and writes
    expected = {"unpack, then clip": 8 + 4 + 8, "clip while unpacking": 4 + 8}
    if not isinstance(found, Mapping) or found.keys() != expected.keys():
        raise Wrong(f"found {found!r}, expected a dict with the keys {', '.join(expected)}")
    for way, bytes_each in expected.items():
        if found[way] != bytes_each:
            raise Wrong(f"{way}: {found[way]!r} bytes an element, expected another number")
