"""What a GPU would run: a kernel compiled to PTX, NVIDIA's assembly language, without a GPU."""

import dataclasses
import importlib
import os
import re
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from helpers.kernels.dispatch import NUM_WARPS, require_triton
from helpers.kernels.text import KernelText

#: Compute capabilities of three generations: A100, H100 and H200, B200.
CAPABILITIES = (80, 90, 100)


@dataclass(frozen=True)
class Source:
    """A kernel and what it is compiled for.

    kernel: a kernel that stands alone, as of a notebook's cell; or "module:name".
    arguments: by name, in order: a type in Triton's words ("*fp32" a pointer, "i32", "fp32"), or
    a number, which is compiled in (tl.constexpr).
    unaligned: names of pointers that may start anywhere. Triton finds that out at each launch;
    all other pointers, and integers, are taken for multiples of 16, as those of most tensors are.
    """

    kernel: Any
    arguments: Mapping[str, str | int]
    unaligned: Sequence[str] = ()
    num_warps: int = NUM_WARPS
    options: Mapping[str, object] = field(default_factory=dict)


def compile_to_ptx(
    sources: Sequence[Source], capabilities: Sequence[int] = CAPABILITIES
) -> list[dict[int, str]]:
    """Return the PTX of each source by compute capability; local, in a process of its own.

    That process compiles, whatever TRITON_INTERPRET says here, and leaves no cache behind.
    Raises ModuleNotFoundError without Triton; RankFailed where a kernel does not compile.
    Chapter 09 reads what comes back.
    """
    require_triton()
    from helpers.launch import run_function

    environment = {"TRITON_INTERPRET": "0"}
    portable = [_portable(source) for source in sources]
    (compiled,) = run_function(
        _compile_all, portable, capabilities, nproc_per_node=1, env=environment
    )
    return compiled


def _portable(source: Source) -> Source:
    """The same, with a kernel that another process can load."""
    if isinstance(source.kernel, str | KernelText):
        return source
    return dataclasses.replace(source, kernel=KernelText.of(source.kernel))


def _compile_all(sources: list[Source], capabilities: Sequence[int]) -> list[dict[int, str]]:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        return [{c: _compile(source, c) for c in capabilities} for source in sources]


def _compile(source: Source, capability: int) -> str:
    import triton
    from triton.backends.compiler import GPUTarget

    kernel = _load(source.kernel)
    types = {n: t if isinstance(t, str) else "constexpr" for n, t in source.arguments.items()}
    values = {n: v for n, v in source.arguments.items() if not isinstance(v, str)}
    places = {name: (place,) for place, name in enumerate(types)}
    multiples_of_16 = {
        places[name]: [["tt.divisibility", 16]]
        for name, kind in types.items()
        if kind[0] in "*iu" and name not in source.unaligned
    }
    compiled = triton.compile(
        triton.compiler.ASTSource(kernel, types, values, multiples_of_16),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": source.num_warps, **source.options},
    )
    return compiled.asm["ptx"]


def _load(kernel: str | KernelText) -> object:
    if isinstance(kernel, KernelText):
        return kernel.load()
    module, _, name = kernel.rpartition(":")
    return getattr(importlib.import_module(module), name)


def instructions(ptx: str) -> Counter[str]:
    """Return how often each instruction occurs, by its full name. Local."""
    lines = re.findall(r"^\s+(?:@!?%p\d+\s+)?([a-z][\w.:]*)\s", ptx, re.MULTILINE)
    return Counter(lines)


def bytes_moved(ptx: str, what: str) -> Counter[int]:
    """Return how many instructions move how many bytes each. Local.

    what: "ld.global" for loads or "st.global" for stores. Of a loop, one turn is counted.
    """
    widths: Counter[int] = Counter()
    for name, count in instructions(ptx).items():
        if name.startswith(what + "."):
            lanes = re.search(r"\.v(\d)", name)
            bits = int(re.search(r"\.[a-z](\d+)$", name)[1])
            widths[(int(lanes[1]) if lanes else 1) * bits // 8] += count
    return widths
