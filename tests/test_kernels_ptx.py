"""What GPUs of three generations would run: every kernel compiled here, and its PTX read."""

import dataclasses
import re
import resource

import kernel_checks as checks
import pytest

from helpers.kernels import sources
from helpers.kernels.ptx import (
    CAPABILITIES,
    _compile_all,
    bytes_moved,
    compile_to_ptx,
    instructions,
)
from helpers.launch import run_function

OURS = {
    "accumulate bf16": sources.accumulate("*bf16"),
    "accumulate fp16": sources.accumulate("*fp16"),
    "accumulate fp32": sources.accumulate("*fp32"),
    "accumulate odd length": sources.accumulate(
        unaligned=("num_elements",), options={"enable_fp_fusion": False}
    ),
    "accumulate unaligned": sources.accumulate(unaligned=("gradient",)),
    "accumulate 2^31": sources.accumulate(num_elements="i64"),
    "copy fp32": sources.copy("*fp32"),
    "copy bf16": sources.copy("*bf16"),
    "squares fp32": sources.squares("*fp32"),
    "squares bf16": sources.squares("*bf16"),
    "one shot fp32": sources.one_shot("*fp32"),
    "one shot bf16": sources.one_shot("*bf16", world_size=8),
}

#: Fused anew, signals without order, an address that nothing is known of.
MUTANTS = {
    "fused": (OURS["accumulate bf16"], "accumulate", "", ""),
    "relaxed signal": (OURS["one shot fp32"], "one_shot", 'sem="release"', 'sem="relaxed"'),
    "relaxed wait": (OURS["one shot fp32"], "one_shot", 'sem="acquire"', 'sem="relaxed"'),
    "of one GPU": (OURS["one shot fp32"], "one_shot", 'scope="sys"', 'scope="gpu"'),
    "no hint": (
        OURS["one shot fp32"],
        "one_shot",
        "tl.multiple_of(tl.load(workspaces + peer).to(out.dtype), 16)",
        "tl.load(workspaces + peer).to(out.dtype)",
    ),
}


def compiled_in_cpu_s():
    """Ours, and the seconds of a core, those of the assembler among them, which is a process."""
    ptx = _compile_all(list(OURS.values()), CAPABILITIES)
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return ptx, sum(each.ru_utime + each.ru_stime for each in used)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """PTX by name and compute capability, and the CPU seconds that our kernels took."""
    checks.demand_triton()
    folder = tmp_path_factory.mktemp("mutants")
    mutants = [_mutant(folder, name, *mutant) for name, mutant in MUTANTS.items()]
    compiles = {"TRITON_INTERPRET": "0"}
    ((ours, seconds),) = run_function(compiled_in_cpu_s, nproc_per_node=1, env=compiles)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        theirs = compile_to_ptx(mutants, [90])
    by_name = dict(zip([*OURS, *MUTANTS], [*ours, *theirs], strict=True))
    print(f"{len(ours)} kernels x {len(CAPABILITIES)} generations: {seconds:.1f} s of a core")
    return by_name, seconds


def _mutant(folder, name, source, module, old, new):
    changed = f"mutant_{name.replace(' ', '_')}"
    (folder / f"{changed}.py").write_text(checks.changed_text(module, old, new))
    options = {} if module == "accumulate" else source.options
    kernel = f"{changed}:{source.kernel.rpartition(':')[2]}"
    return dataclasses.replace(source, kernel=kernel, options=options)


@pytest.fixture(params=CAPABILITIES)
def ptx(request, compiled):
    by_name, _ = compiled
    return lambda name: by_name[name][request.param]


def test_it_takes_less_than_fifteen_seconds_of_a_core(compiled):
    _, seconds = compiled
    assert seconds < 15


# -- vector loads ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_accumulate_moves_sixteen_bytes_at_a_time(ptx, dtype):
    for what in ("ld.global", "st.global"):
        assert set(bytes_moved(ptx(f"accumulate {dtype}"), what)) == {16}


def test_a_tail_is_moved_element_by_element_and_whole_blocks_are_not(ptx):
    """Of an odd length the compiler knows nothing: only the block at the end pays for that."""
    assert set(bytes_moved(ptx("accumulate odd length"), "ld.global")) == {2, 4, 16}
    assert set(bytes_moved(ptx("accumulate odd length"), "st.global")) == {4, 16}


def test_an_unaligned_gradient_is_read_element_by_element(ptx):
    assert set(bytes_moved(ptx("accumulate unaligned"), "ld.global")) == {2, 16}


@pytest.mark.parametrize(("dtype", "size"), [("fp32", 4), ("bf16", 2)])
def test_copies_know_aligned_chunks_and_others(ptx, dtype, size):
    table = {8}  # the table of chunks, int64
    assert set(bytes_moved(ptx(f"copy {dtype}"), "ld.global")) - table == {size, 16}
    assert set(bytes_moved(ptx(f"copy {dtype}"), "st.global")) == {size, 16}


def test_sums_read_sixteen_bytes_at_a_time(ptx):
    for dtype in ("fp32", "bf16"):
        assert set(bytes_moved(ptx(f"squares {dtype}"), "ld.global")) == {16}
    assert 16 in bytes_moved(ptx("one shot fp32"), "ld.global")


def test_without_the_hint_peers_are_read_element_by_element(compiled):
    by_name, _ = compiled
    assert 16 not in bytes_moved(by_name["no hint"][90], "ld.global")


# -- rounding ----------------------------------------------------------------------------------


def fused(ptx: str) -> list[str]:
    return [name for name in instructions(ptx) if name.startswith("fma")]


def test_two_roundings_are_two_instructions(ptx, compiled):
    for name in OURS:
        if name.startswith("accumulate"):
            assert not fused(ptx(name)), name
    assert fused(compiled[0]["fused"][90])


# -- order between GPUs ------------------------------------------------------------------------


def is_ordered(ptx: str) -> bool:
    """Whether each signal is a release, each question an acquire, for all GPUs and CPUs."""
    signals = [name for name in instructions(ptx) if name.startswith("atom.")]
    asks = [name for name in instructions(ptx) if re.match(r"(ld|atom)\..*(acquire|relaxed)", name)]
    return (
        bool(signals and asks)
        and all(".sys.release." in name for name in signals if name not in asks)
        and all(".sys.acquire" in name for name in asks)
    )


def test_signals_are_released_and_acquired_by_the_whole_system(ptx, compiled):
    for name in ("one shot fp32", "one shot bf16"):
        assert is_ordered(ptx(name))
    for name in ("relaxed signal", "relaxed wait", "of one GPU"):
        assert not is_ordered(compiled[0][name][90]), name


def test_a_rank_signals_each_rank_twice_and_asks_each_twice(ptx):
    counts = instructions(ptx("one shot fp32"))
    assert sum(n for name, n in counts.items() if "release" in name) == 2 * 4
    assert sum(n for name, n in counts.items() if "acquire" in name) == 2 * 4


# -- beyond 2^31 elements ----------------------------------------------------------------------


def test_a_length_beyond_32_bits_is_compared_in_64(ptx):
    assert any(re.match(r"setp\.\w+\.s64", name) for name in instructions(ptx("accumulate 2^31")))


def test_what_cannot_be_compiled_is_an_error_with_its_reason():
    checks.demand_triton()
    broken = dataclasses.replace(OURS["copy fp32"], kernel="helpers.kernels.jit.pack:missing")
    with pytest.raises(Exception, match="missing"):
        compile_to_ptx([broken], [90])
