"""Chapter 09: its kernels against the helpers', its figures, and what GPUs are to have measured."""

import itertools
import json

import kernel_checks as checks
import pytest
import torch
from kernel_checks import interpreted
from notebook_cells import chapter, namespace

from helpers import cost_model, kernels
from helpers.explore import explore
from helpers.figures import barrier, measured_kernels, to_svg
from helpers.figures import kernels as figures
from helpers.kernels.bench.command import is_right, main
from helpers.kernels.bench.table import table
from helpers.kernels.ptx import Source, bytes_moved, compile_to_ptx
from helpers.kernels.text import KernelText
from helpers.link import LINKS


def the_chapters_kernels() -> None:
    names = namespace(chapter("09"))
    for length in checks.LENGTHS[1:]:
        total, gradient = checks.numbers(length), checks.numbers(length, torch.bfloat16, 1)
        expected = kernels.accumulate_(total.clone(), gradient, 0.3)
        checks.same(names["accumulate"](total, gradient, 0.3), expected)
    tensors = [checks.numbers(length, seed=length) for length in (1, 1024, 1025, 7)]
    bucket = torch.zeros(sum(map(len, tensors)))
    names["pack"](tensors, bucket, 0.3)
    views = list(torch.zeros_like(bucket).split([len(tensor) for tensor in tensors]))
    kernels.pack(tensors, views, 0.3)
    checks.same(bucket, torch.cat(views))


def test_kernels_of_the_chapter_and_of_the_helpers_have_the_same_bits():
    interpreted(the_chapters_kernels)


def test_a_kernel_travels_as_text_only_if_it_is_one():
    with pytest.raises(TypeError, match="found int, expected a kernel"):
        KernelText.of(3)
    assert KernelText.of(explore).text.startswith("@triton.jit\ndef explore(")


# -- figures -----------------------------------------------------------------------------------


def test_packing_is_bound_by_launches_or_by_bytes():
    few_large = {way: figures.pack_s(way, 1, 10**9) for way in figures.WAYS}
    assert few_large["concatenate, then multiply"][1] == pytest.approx(16e9 / 3.35e12)
    assert few_large["multiply, one by one"] == few_large["multi-tensor kernel"]
    many_small = {way: figures.pack_s(way, 1000, 1) for way in figures.WAYS}
    launches = [round(launch_s / figures.LAUNCH_S) for launch_s, _ in many_small.values()]
    assert launches == [2, 1000, 1]


def test_one_shot_takes_two_latencies_and_reads_all_others():
    link = LINKS["nvlink4"]
    assert figures.one_shot_s(0, 8, link) == 2 * link.latency_s
    read_s = figures.one_shot_s(10**9, 8, link) - 2 * link.latency_s
    assert read_s == pytest.approx(7e9 / 450e9)
    two = figures.one_shot_s(10**6, 2, link)
    assert two == pytest.approx(cost_model.all_reduce_s("ring", 10**6, 2, link), rel=1e-6)


def test_each_barrier_prevents_the_race_that_it_is_for():
    found = {name: barrier.races(barrier.barrier_lanes(name)) for name in barrier.BARRIERS}
    assert found == {
        "both barriers": [],
        "no first barrier": [(0, 1, "rank 1's old numbers")],
        "no second barrier": [(1, 5, "rank 0's next numbers")],
    }
    for name in barrier.BARRIERS:
        for lane in barrier.barrier_lanes(name):
            ends = [(begin, end) for begin, end, _ in lane]
            assert all(end == begin for (_, end), (begin, _) in itertools.pairwise(ends))


@pytest.mark.parametrize(("time", "seen"), [(1, False), (5, False), (6, True), (8, True)])
def test_a_race_shows_once_it_has_happened(time, seen):
    shown = barrier.barrier(time, "no second barrier").shows
    assert ("reads rank 0's next numbers" in shown) == seen


@pytest.mark.parametrize(
    "figure",
    [
        lambda: figures.packing(1, 100),
        lambda: figures.packing(1000, 1_000_000),
        lambda: figures.one_shot_and_others(LINKS["nvlink4"], 8, 3.5e6),
        *(lambda n=name: barrier.barrier(8, n) for name in barrier.BARRIERS),
    ],
)
def test_every_figure_draws_itself_the_same_twice(figure):
    assert to_svg(figure(), "") == to_svg(figure(), "")


# -- what GPUs measure -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dry_run(tmp_path_factory):
    """The command's exit code and record, through the same code as on a GPU."""
    path = tmp_path_factory.mktemp("gpu") / "dry.json"
    return main(["--json", str(path)]), json.loads(path.read_text())


def test_a_dry_run_goes_all_the_way_and_says_so(dry_run):
    code, record = dry_run
    assert code == 0
    assert record["is_dry_run"]
    assert set(record["verdicts"].values()) == {"equal bits", "within rounding"}
    assert len(record["bandwidths"]) == 6
    assert all(min(row["gb_per_s"].values()) > 0 for row in record["bandwidths"])
    assert [row["equal_bits"] for row in record["one_shot"]] == [True, True]
    assert record["machine"]["torch"] == torch.__version__
    assert not any(word in table(record) for word in ("met", "MISSED"))


def test_a_wrong_kernel_is_an_exit_code(dry_run):
    _, record = dry_run
    assert is_right(record)
    assert not is_right(record | {"verdicts": {"pack, unpack": "1 of 9 differ"}})
    row = record["one_shot"][0]
    assert not is_right(record | {"one_shot": [row | {"equal_bits": False}]})
    failed = {"world_size": 2, "shares_gpu": True, "failed": "rank 0: RuntimeError: no\nline 2"}
    assert not is_right(record | {"one_shot": [failed]})
    assert "2 ranks, one GPU: rank 0: RuntimeError: no" in table(record | {"one_shot": [failed]})


def test_the_page_names_what_is_missing_and_shows_what_is_there(dry_run, tmp_path):
    _, record = dry_run
    (tmp_path / "gpu_dry.json").write_text(json.dumps(record))
    assert measured_kernels.gpu_records(tmp_path) == []
    assert "`make gpu`" in measured_kernels.gpu_tables([])
    machine = record["machine"] | {"gpus": ["Some GPU"], "triton": "3.9.0"}
    real = record | {"is_dry_run": False, "machine": machine, "date": "2030-01-02"}
    slow, fast = ([row | {"of_bare": r} for row in record["bandwidths"]] for r in (0.85, 0.95))
    for name, rows in (("b", fast), ("a", slow)):
        (tmp_path / f"gpu_{name}.json").write_text(json.dumps(real | {"bandwidths": rows}))
    first, second = measured_kernels.gpu_records(tmp_path)
    assert "1 x Some GPU" in (text := measured_kernels.gpu_tables([first]))
    assert text.count("MISSED") == 6
    assert measured_kernels.gpu_tables([second]).count("  met") == 6


def test_a_folder_that_is_not_there_is_named(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["--json", str(tmp_path / "missing" / "x.json")])
    assert "no folder" in capsys.readouterr().err


# -- what the chapter says of promises ---------------------------------------------------------

COPY = """@triton.jit
def copy_kernel(table, BLOCK: tl.constexpr):
    source = tl.load(table).to(tl.pointer_type(tl.float32))
    target = tl.load(table + 1).to(tl.pointer_type(tl.float32))
    n = tl.load(table + 2)
    offsets = tl.arange(0, BLOCK)
    values = tl.load(source + offsets, mask=offsets < n)
    tl.store(target + offsets, values, mask=offsets < n)
"""
HINTED = COPY.replace("    n =", "    source = tl.multiple_of(source, 16)\n    n =")


def test_a_promise_of_alignment_changes_nothing_under_a_mask_of_unknown_end():
    checks.demand_triton()
    whole = {"plain": COPY, "hint": HINTED}
    texts = whole | {f"{n}, whole": t.replace(", mask=offsets < n", "") for n, t in whole.items()}
    arguments = {"table": "*i64", "BLOCK": 1024}
    sources = [Source(KernelText("copy_kernel", text), arguments, (), 4) for text in texts.values()]
    widths = {
        name: set(bytes_moved(compiled[90], "ld.global")) - {8}  # the table
        for name, compiled in zip(texts, compile_to_ptx(sources, [90]), strict=True)
    }
    assert widths == {"plain": {4}, "hint": {4}, "plain, whole": {4}, "hint, whole": {16}}
