"""What the book's kernels must do, as functions that raise; and kernels that someone could write.

Each check runs in a process of its own, where Triton interprets: `interpreted(check)`.
"""

import contextlib
import importlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
import torch

from helpers import kernels
from helpers.accumulate import GradientAccumulator
from helpers.kernels import reference
from helpers.kernels.text import KernelText
from helpers.launch import run_function

INTERPRET = {"TRITON_INTERPRET": "1"}
BEYOND = 4 * 4096  # elements after a tensor's end: a chunk
HALF = (torch.bfloat16, torch.float16)
DTYPES = (torch.float32, *HALF)

_folder = tempfile.TemporaryDirectory()

#: (module of helpers.kernels.jit, what it says, what a mutant says)
Mutant = tuple[str, str, str]


def demand_triton() -> None:
    """Skip where Triton is not installed; red where it is required."""
    if not kernels.has_triton():
        demand = pytest.fail if os.environ.get("REQUIRE_TRITON") else pytest.skip
        demand("NO TRITON: install it with `make triton`")


def interpreted(check: Callable, *arguments, mutant: Mutant | None = None, ranks: int = 1) -> list:
    """Run a check on each rank with interpreted kernels, one of them changed if asked for."""
    demand_triton()
    return run_function(
        _with_mutant, mutant, check, *arguments, nproc_per_node=ranks, env=INTERPRET
    )


def _with_mutant(mutant: Mutant | None, check: Callable, *arguments):
    if mutant:
        load_changed(*mutant)
    return check(*arguments)


def changed_text(module: str, old: str, new: str) -> str:
    """Return the text of a kernel module as it is loaded now, changed."""
    text = Path(importlib.util.find_spec(f"helpers.kernels.jit.{module}").origin).read_text()
    assert old in text, f"{module}: {old!r} is not there to be changed"
    return text.replace(old, new)


def load_changed(module: str, old: str, new: str, **names) -> None:
    """Put a changed kernel module in the real one's place, with more names to call."""
    name = f"helpers.kernels.jit.{module}"
    path = Path(_folder.name) / f"{module}.py"  # a file: Triton reads a kernel's source
    path.write_text(changed_text(module, old, new))
    spec = importlib.util.spec_from_file_location(name, path)
    loaded = importlib.util.module_from_spec(spec)
    vars(loaded).update(names)
    spec.loader.exec_module(loaded)
    sys.modules[name] = loaded


def numbers(num_elements: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_elements, generator=generator).to(dtype)


def inside(values: torch.Tensor, shift: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a copy of values that starts `shift` elements into a buffer of sevens, and that.

    After it come so many that even a kernel without a mask stays in the buffer.
    """
    buffer = torch.full((len(values) + shift + BEYOND,), 7.0, dtype=values.dtype)
    view = buffer[shift : shift + len(values)]
    view.copy_(values)
    return view, buffer


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.dtype == expected.dtype
    equal = (found == expected) | (found.isnan() & expected.isnan())
    assert bool(equal.all()), f"{int((~equal).sum())} of {equal.numel()} elements differ"


# Zero, one, a few, one block exactly, one more, several blocks and a tail.
LENGTHS = (0, 1, 5, 4096, 4097, 3 * 4096 + 17)


def accumulates_exactly() -> None:
    """Two roundings, at every length and alignment; nothing beyond the end is touched."""
    for dtype in DTYPES:
        for index, length in enumerate(LENGTHS):
            total, buffer = inside(numbers(length), index % 3)
            gradient, _ = inside(numbers(length, dtype, seed=1), (index + 1) % 3)
            expected = reference.accumulate_(total.clone(), gradient, 1 / 3)
            assert kernels.runs_triton(total)
            assert kernels.accumulate_(total, gradient, 1 / 3) is total
            same(total, expected)
            assert buffer.eq(7).sum() == BEYOND + index % 3, "beyond the tensor's end"


def packs_exactly() -> None:
    """Many tensors at once, of any length and alignment, into views and back."""
    for dtype in DTYPES:
        tensors = [numbers(length, dtype, seed) for seed, length in enumerate((*LENGTHS, 40_000))]
        for shift in (0, 1):
            _, buffer = inside(torch.cat(tensors), shift)
            buffer.fill_(7)
            views = list(buffer[shift:-BEYOND].split([len(t) for t in tensors]))
            kernels.pack(tensors, views, 1 / 3)
            for tensor, view in zip(tensors, views, strict=True):
                expected = torch.empty_like(tensor)
                reference.pack([tensor], [expected], 1 / 3)
                same(view, expected)
            assert buffer.eq(7).sum() == BEYOND + shift, "beyond the views' end"
            back = [torch.empty_like(tensor) for tensor in tensors]
            kernels.unpack(views, back, 2.0)
            for view, tensor in zip(views, back, strict=True):
                same(tensor, view * 2)


def sums_squares() -> None:
    """Exactly where every sum fits: whole numbers; else within rounding of float64's answer."""
    for dtype in DTYPES:
        for length in (*LENGTHS, 9 * 8 * 4096 + 1):
            whole = numbers(length, dtype).mul(3).round().to(dtype)
            tensor, _ = inside(whole, length % 3)
            same(kernels.sum_of_squares(tensor).double(), tensor.double().square().sum())
            tensor = numbers(length, dtype)
            exact = tensor.double().square().sum()
            # each square and each of the ~30 sums on an element's way rounds once
            assert (kernels.sum_of_squares(tensor) - exact).abs() <= 32 * 2**-24 * exact


def carries_what_is_not_finite() -> None:
    for dtype in DTYPES:
        odd = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0]).to(dtype)
        total = torch.arange(6.0)
        expected = reference.accumulate_(total.clone(), odd, 2.0)
        same(kernels.accumulate_(total, odd, 2.0), expected)
        view = torch.zeros_like(odd)
        kernels.pack([odd], [view], 2.0)
        same(view, odd * 2)
        assert kernels.sum_of_squares(odd).isnan()
        assert kernels.sum_of_squares(odd[1:]) == float("inf")
    big = torch.tensor([6e4, -6e4], dtype=torch.float16)
    view = torch.zeros_like(big)
    kernels.pack([big], [view], 2.0)
    assert view.tolist() == [float("inf"), -float("inf")], "beyond what float16 holds"


def bfloat16_goes_to_the_nearest() -> None:
    """The interpreter would cut off; halfway goes to even, as torch and a GPU do it."""
    tensor = torch.tensor([1.0, -1.0078125, 3.0, 255.0], dtype=torch.bfloat16)
    view = torch.zeros_like(tensor)
    for scale in (1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -1 - 2**-8, 3.39e38):
        kernels.pack([tensor], [view], scale)
        same(view, (tensor.float() * scale).bfloat16())


def all_of_bfloat16() -> None:
    """Each bfloat16 number, those below the normal ones too, there and back."""
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16)
    for scale in (1.0, 0.3):
        view = torch.zeros_like(every)
        kernels.pack([every], [view], scale)
        same(view, (every.float() * scale).bfloat16())


def negated_views_and_subclasses() -> None:
    """On either side: a kernel would take their memory for what they are."""
    one = torch.complex(torch.ones(1), torch.ones(1))
    same(kernels.accumulate_(torch.zeros(1), one.conj().imag), torch.tensor([-1.0]))
    negated = torch.complex(torch.zeros(1), torch.zeros(1)).conj().imag
    kernels.pack([torch.ones(1)], [negated])
    same(negated.resolve_neg(), torch.tensor([1.0]))
    assert not kernels.runs_triton(
        torch.ones(1), torch.ones(1).as_subclass(type("Own", (torch.Tensor,), {}))
    )


def autograd_hears_of_it() -> None:
    """What a graph has saved and a kernel has written to is an error at backward."""
    writers = (
        lambda x: kernels.accumulate_(x, torch.ones(3)),
        lambda x: kernels.pack([torch.ones(3)], [x]),
        lambda x: kernels.unpack([torch.ones(3)], [x]),
    )
    for write in writers:
        saved, weight = torch.full((3,), 2.0), torch.ones(3, requires_grad=True)
        product = (weight * saved).sum()
        write(saved)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.backward()


def sparse_gradients_are_added() -> None:
    table = torch.nn.Embedding(3, 2, sparse=True)
    accumulator = GradientAccumulator(table.parameters())
    for _ in range(2):
        table(torch.tensor([1])).sum().backward()
        accumulator.add()
    accumulator.assign()
    assert table.weight.grad.to_dense().tolist() == [[0, 0], [2, 2], [0, 0]]


def launches_on_the_tensors_device() -> None:
    """Triton launches on the current GPU: each launch is inside the tensor's own."""
    inside_of: list[torch.Tensor] = []
    launched = []

    @contextlib.contextmanager
    def device_of(tensor):
        inside_of.append(tensor)
        yield
        inside_of.pop()

    class Kernel:
        def __getitem__(self, grid):
            return lambda *_, **__: launched.append(len(inside_of))

    ones = torch.ones(3)
    with (
        mock.patch("torch.cuda.device_of", device_of),
        mock.patch.multiple("helpers.kernels.accumulate", kernel=lambda *_: Kernel()),
        mock.patch.multiple("helpers.kernels.packing", kernel=lambda *_: Kernel()),
        mock.patch.multiple("helpers.kernels.squares", kernel=lambda *_: Kernel()),
    ):
        kernels.accumulate_(ones, torch.ones(3))
        kernels.pack([ones], [torch.ones(3)])
        kernels.sum_of_squares(ones)
    assert launched == [1, 1, 1]


def kernels_of_one_name() -> None:
    """Two texts of one name, loaded one after the other, stay two kernels."""
    texts = [f"@triton.jit\ndef fill(out):\n    tl.store(out, {n}.0)\n" for n in (1, 2)]
    found = []
    for kernel in [KernelText("fill", text).load() for text in texts]:
        out = torch.zeros(1)
        kernel[(1,)](out)
        found.append(out.item())
    assert found == [1, 2]


def takes_any_strides() -> None:
    image = numbers(120).view(2, 3, 4, 5)
    layouts = {
        "rows": image,
        "channels last": image.contiguous(memory_format=torch.channels_last),
        "transposed": image.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
        "gaps": numbers(240).view(2, 3, 4, 10)[..., ::2],
    }
    for total in layouts.values():
        for gradient in layouts.values():
            kept = torch.empty_strided(total.shape, total.stride()).copy_(total)
            expected = reference.accumulate_(total.clone(), gradient, 0.3)
            same(kernels.accumulate_(kept, gradient, 0.3), expected)
    views = [torch.zeros(2, 3, 4, 5) for _ in layouts]
    kernels.pack(list(layouts.values()), views, 0.5)
    for tensor, view in zip(layouts.values(), views, strict=True):
        same(view, tensor / 2)
        exact = tensor.double().square().sum()
        assert (kernels.sum_of_squares(tensor) - exact).abs() <= 1e-6 * exact


def hints_hold() -> None:
    """Whatever the compiler is told of a pointer is true: else a GPU would read what it must not.

    The interpreter takes no notice of hints, so each is looked at here.
    """
    seen: list[int] = []

    def multiple_of(pointer, number):
        value = int(pointer.handle.data[0])
        assert value % number == 0, f"{value} is no multiple of {number}"
        seen.append(value)
        return pointer

    load_changed("pack", "tl.multiple_of(", "multiple_of(", multiple_of=multiple_of)
    packs_exactly()
    assert len(seen) > 4


def offsets_beyond_2_31() -> None:
    """The offsets of a block far up, as all kernels compute them."""
    path = Path(_folder.name) / "store_offsets.py"
    path.write_text(
        "import triton\n"
        "import triton.language as tl\n"
        "from helpers.kernels.jit.blocks import block_offsets\n\n\n"
        "@triton.jit\n"
        "def store_offsets(out, block, BLOCK: tl.constexpr):\n"
        "    tl.store(out + tl.arange(0, BLOCK), block_offsets(tl.cast(block, tl.int32), BLOCK))\n"
    )
    spec = importlib.util.spec_from_file_location("store_offsets", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    out = torch.zeros(4096, dtype=torch.int64)
    for block in (0, 2**19 - 1, 2**19, 2**21 + 3):
        module.store_offsets[(1,)](out, block, BLOCK=4096)
        same(out, block * 4096 + torch.arange(4096))
