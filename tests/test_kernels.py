"""The kernels, interpreted: bit for bit what their references give, and what they refuse."""

import functools
import importlib
import os
import subprocess
import sys
from unittest import mock

import kernel_checks as checks
import pytest
import torch
from kernel_checks import interpreted

from helpers import kernels
from helpers.accumulate import GradientAccumulator
from helpers.kernels import reference
from helpers.launch import RankFailed, run_function
from helpers.launch.surroundings import _forget_triton

CHECKS = [
    checks.accumulates_exactly,
    checks.packs_exactly,
    checks.sums_squares,
    checks.carries_what_is_not_finite,
    checks.bfloat16_goes_to_the_nearest,
    checks.all_of_bfloat16,
    checks.negated_views_and_subclasses,
    checks.autograd_hears_of_it,
    checks.sparse_gradients_are_added,
    checks.launches_on_the_tensors_device,
    checks.kernels_of_one_name,
    checks.takes_any_strides,
    checks.hints_hold,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_interpreted_kernels(check):
    interpreted(check)


TAIL_MASK = ("blocks", "tl.store(pointer + offsets, values, mask=offsets < num_elements)")
MUTANTS = {
    "no tail mask": (
        (*TAIL_MASK, "tl.store(pointer + offsets, values)"),
        checks.accumulates_exactly,
        "beyond the tensor's end",
    ),
    "no tail mask, in a bucket": (
        (*TAIL_MASK, "tl.store(pointer + offsets, values)"),
        checks.packs_exactly,
        "beyond the views' end",
    ),
    "scale forgotten": (
        ("accumulate", "scale * load(gradient", "load(gradient"),
        checks.accumulates_exactly,
        "elements differ",
    ),
    "scale forgotten in a bucket": (
        ("pack", "scale * values", "values"),
        checks.packs_exactly,
        "elements differ",
    ),
    "one rounding for two": (
        (
            "accumulate",
            "load(accumulator, offsets, num_elements, IS_FULL) + addend",
            # float64 holds the product exactly; not every interpreter's tl.fma rounds once
            "(load(gradient, offsets, num_elements, IS_FULL).to(tl.float64) * scale + "
            "load(accumulator, offsets, num_elements, IS_FULL)).to(tl.float32)",
        ),
        checks.accumulates_exactly,
        "elements differ",
    ),
    "unaligned hint on an unaligned pointer": (
        ("pack", "if is_aligned & (", "if ("),
        checks.hints_hold,
        "is no multiple of 16",
    ),
    "last block left out": (
        ("squares", "range(BLOCKS_PER_PROGRAM)", "range(BLOCKS_PER_PROGRAM - 1)"),
        checks.sums_squares,
        "elements differ",
    ),
    "cut off in place of rounded": (
        ("blocks", "values = nearest_bfloat16(values)", "pass"),
        checks.bfloat16_goes_to_the_nearest,
        "elements differ",
    ),
    "offsets of 32 bits": (
        ("blocks", "block.to(tl.int64) * BLOCK", "block * BLOCK"),
        "offsets_beyond_2_31",
        "elements differ",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_red(name):
    mutant, check, said = MUTANTS[name]
    check = getattr(checks, check) if isinstance(check, str) else check
    with pytest.raises(Exception, match=said):
        interpreted(check, mutant=mutant)


def test_offsets_of_blocks_beyond_two_to_the_31_elements():
    interpreted(checks.offsets_beyond_2_31)


def interpreted_after_it_was_compiled(forgets: bool) -> None:
    importlib.import_module("triton.language")  # as the fork server may have done
    os.environ["TRITON_INTERPRET"] = "1"
    if forgets:
        _forget_triton()
    checks.carries_what_is_not_finite()


def test_a_rank_reads_triton_interpret_although_triton_was_loaded_before():
    checks.demand_triton()
    run = functools.partial(run_function, interpreted_after_it_was_compiled, nproc_per_node=1)
    compiles = {"TRITON_INTERPRET": "0"}
    run(True, env=compiles)
    with pytest.raises(RankFailed, match="Triton was imported without TRITON_INTERPRET=1"):
        run(False, env=compiles)


# -- without Triton ----------------------------------------------------------------------------


def test_import_takes_neither_triton_nor_a_gpu_and_references_do_the_work():
    program = (
        "import sys; sys.modules['triton'] = None; import torch; from helpers import kernels; "
        "total = kernels.accumulate_(torch.ones(3), torch.ones(3).bfloat16(), 0.5); "
        "assert total.tolist() == [1.5] * 3; assert kernels.sum_of_squares(total) == 6.75; "
        "kernels.pack([total], [view := torch.zeros(3)], 2.0); assert view.tolist() == [3.0] * 3"
    )
    environment = {"CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_what_is_missing_is_named_with_what_to_do():
    with (
        mock.patch("helpers.kernels.dispatch.has_triton", return_value=False),
        pytest.raises(ModuleNotFoundError, match="`make triton`"),
    ):
        kernels.require_triton()


def test_a_kernel_is_for_plain_tensors_of_its_dtypes(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr("helpers.kernels.dispatch.has_triton", lambda: True)
    ones = torch.ones(3)
    assert kernels.runs_triton(ones)
    assert kernels.runs_triton(torch.nn.Parameter(ones.half()))
    assert not kernels.runs_triton(ones.double())
    assert not kernels.runs_triton(ones.to("meta"))
    assert not kernels.runs_triton(torch.complex(ones, ones).conj().imag)
    monkeypatch.delenv("TRITON_INTERPRET")
    assert not kernels.runs_triton(ones)


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (
            lambda x: kernels.accumulate_(x.half(), x),
            TypeError,
            r"accumulator: found torch.float16, expected torch.float32",
        ),
        (
            lambda x: kernels.accumulate_(x, x.double()),
            TypeError,
            r"gradient: found torch.float64, expected torch.float32 or torch.bfloat16 or",
        ),
        (lambda x: kernels.accumulate_(x, x[:2]), ValueError, r"gradient: found \(\(2,\), 'cpu'"),
        (lambda x: kernels.accumulate_(x, x.to_sparse()), TypeError, "torch.sparse_coo"),
        (lambda x: kernels.accumulate_(x, x.to("meta")), ValueError, "'meta'"),
        (lambda x: kernels.pack([x, x], [x]), *(ValueError, "found 2 tensors and 1 views")),
        (lambda x: kernels.pack([x], [x.half()]), TypeError, "float16 on cpu.*float32 on cpu"),
        (lambda x: kernels.pack([x, x.half()], [x, x.half()]), TypeError, "expected one dtype"),
        (lambda x: kernels.unpack([x], [x[:1]]), ValueError, "pair 0"),
        (lambda x: kernels.pack([x.long()], [x.long()]), TypeError, "torch.int64"),
        (lambda x: kernels.sum_of_squares(x.long()), TypeError, "expected a floating-point"),
        (lambda x: kernels.sum_of_squares(x.to_sparse()), TypeError, "layout"),
    ],
)
def test_refusals_name_what_was_found(call, error, said):
    with pytest.raises(error, match=said):
        call(torch.ones(3))


def test_the_reference_rounds_twice_where_torch_rounds_once():
    """Why the definition is a + s * g in two steps: torch.add with alpha fuses them on CPUs."""
    total, gradient = checks.numbers(1000), checks.numbers(1000, seed=1)
    found = kernels.accumulate_(total.clone(), gradient, 1 / 3)
    product = (gradient.double() * torch.tensor(1 / 3).double()).float()
    assert torch.equal(found, (total.double() + product.double()).float())


def test_references_of_float64_stay_in_float64():
    tensor = checks.numbers(100).double()
    assert kernels.sum_of_squares(tensor).dtype == torch.float64
    view = torch.empty_like(tensor)
    kernels.pack([tensor], [view], 1 / 3)
    assert torch.equal(view, tensor * (1 / 3))


# -- used, not only shown ----------------------------------------------------------------------


def accumulator_takes_the_kernel() -> int:
    with mock.patch("helpers.kernels.accumulate.kernel", wraps=kernels.dispatch.kernel) as taken:
        sums = {}
        for interprets in (True, False):
            weights = [torch.nn.Parameter(torch.ones(5, dtype=d)) for d in checks.DTYPES]
            accumulator = GradientAccumulator(weights)
            with mock.patch("helpers.kernels.dispatch.is_interpreted", lambda on=interprets: on):
                for step in range(3):
                    for weight in weights:
                        weight.grad = checks.numbers(5, weight.dtype, seed=step)
                    accumulator.add()
            sums[interprets] = list(accumulator._sums.values())
        for found, expected in zip(*sums.values(), strict=True):
            checks.same(found, expected)
        return taken.call_count


def test_the_accumulator_takes_the_kernel_where_it_runs():
    assert interpreted(accumulator_takes_the_kernel) == [2 * 3]


def test_reference_has_the_same_names():
    operations = set(kernels.__all__) - {"has_triton", "require_triton", "runs_triton", "reference"}
    assert all(callable(getattr(reference, name)) for name in operations)
