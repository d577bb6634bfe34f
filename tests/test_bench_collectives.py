"""The all-reduce table: what it prints, checks, writes and refuses; the link's model beside it."""

import itertools
import json
import math
import os
import re

import pytest
import torch

from helpers import bench_collectives
from helpers.bench_collectives import measure, record, table
from helpers.bench_collectives.arguments import NAMES, parse
from helpers.bench_collectives.measure import Row, World
from helpers.launch import RankFailed, run, run_function
from helpers.link import LINKS

# arguments


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        *(("4096", 4096), ("1K", 1024), ("1.5k", 1536), ("4M", 1 << 22), ("4MB", 4_000_000)),
        *(("4MiB", 1 << 22), ("1G", 1 << 30), ("2GB", 2 * 10**9), ("8B", 8)),
    ],
)
def test_sizes_are_read_as_nccl_tests_does_and_in_powers_of_ten(text, size_bytes):
    assert parse(["--sizes", text]).settings.sizes_bytes == (size_bytes,)


@pytest.mark.parametrize(
    ("words", "sizes_bytes"),
    [
        ("-s 1 3 --dtype float16", (2,)),
        ("-s 1 7 8 9 20", (4, 8, 20)),
        ("-s 9 8 --dtype float64", (8,)),
    ],
)
def test_sizes_are_whole_elements_each_once(words, sizes_bytes):
    assert parse(words.split()).settings.sizes_bytes == sizes_bytes


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--sizes 4X", "argument --sizes/-s: '4X' is no size; expected bytes as 4096, 64K"),
        ("--sizes 0", "'0' is no size"),
        ("--sizes", "expected at least one argument"),
        ("--ranks 0", "argument --ranks/-n: found '0', expected a number, 1 or more"),
        ("--ranks two", "found 'two', expected a number"),
        ("--algorithms star", "argument --algorithms/-a: invalid choice: 'star'"),
        ("--dtype float8", "argument --dtype: invalid choice: 'float8'"),
        ("--repeat 0", "argument --repeat: found '0', expected a number, 1 or more"),
        ("--link carrier_pigeon", "argument --link: invalid choice: 'carrier_pigeon'"),
        ("--slowed 10", "--slowed: expected --link NAME with it"),
        ("--link internet --slowed -1", "argument --slowed: found '-1', expected a number above 0"),
        ("--link internet -a shared_memory", "shared_memory goes over no link"),
        ("--timeout-s nan", "argument --timeout-s: found 'nan'"),
        ("--json runs.txt", "argument --json: found 'runs.txt', expected a name with .json"),
        ("--figure no_such_folder/a.svg", "no folder 'no_such_folder' to write into"),
        ("--figure a.png", "expected a name with .svg"),
        ("--speed", "unrecognized arguments: --speed"),
    ],
)
def test_unusable_arguments_are_named(words, message, capsys):
    with pytest.raises(SystemExit) as caught:
        parse(words.split())
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_help_names_every_algorithm_and_link(capsys):
    with pytest.raises(SystemExit) as caught:
        bench_collectives.main(["--help"])
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert all(name in text for name in (*NAMES, *LINKS, "torchrun", "nccl"))


def test_all_is_measured_but_what_makes_no_sense():
    assert set(parse([]).settings.algorithms) == set(NAMES) - {"auto"}
    link = parse(["--link", "internet", "--slowed", "2"]).settings
    assert set(link.algorithms) == set(NAMES) - {"auto", "shared_memory"}
    assert link.link.latency_s == 2 * LINKS["internet"].latency_s


# the command


def rows_of(text):
    """(size, algorithm) -> the other cells of its line."""
    lines = re.findall(r"^ *(\d+ \w+)  (\w+) +(.*)$", text, re.MULTILINE)
    return {(size, name): re.findall(r"\(.*?\)|[\d.]+", cells) for size, name, cells in lines}


def test_the_command_measures_checks_prints_and_writes(tmp_path, capsys):
    files = tmp_path / "runs.json", tmp_path / "times.svg"
    words = "--ranks 1 2 --sizes 1K 12KB --repeat 3 --warmup 1 --algorithms"
    words = [*words.split(), *NAMES, "--json", str(files[0]), "--figure", str(files[1])]
    assert bench_collectives.main(words) == 0
    out, err = capsys.readouterr()
    for world_size, text in zip((1, 2), out.split("\n\n"), strict=False):
        assert f"all-reduce of float32, {world_size} rank" in text
        assert "gloo on the CPU, real links" in text
        assert set(rows_of(text)) == {(size, name) for size in ("1 KiB", "12 KB") for name in NAMES}
    for column in ("size", "time", "algbw", "busbw", "CPU"):
        assert re.search(rf"^{column} +\S", out.split("\n\n")[2], re.MULTILINE)
    assert "predicted" not in out
    assert "2 ranks: 100%" in err

    found = json.loads(files[0].read_text())
    assert found["machine"].keys() >= {"cpu", "cores", "gpus", "system", "python", "torch"}
    assert found["machine"]["torch"] == torch.__version__
    assert (found["link"]["is_emulated"], found["dtype"]) == (False, "float32")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", found["date"])
    assert [world["world_size"] for world in found["worlds"]] == [1, 2]
    for world in found["worlds"]:
        assert (world["backend"], world["device"]) == ("gloo", "cpu")
        for row in world["rows"]:
            n = world["world_size"]
            assert len(row["seconds"]) == len(row["cpu_s"]) == 3
            assert sorted(row["seconds"])[1] == pytest.approx(row["median_s"], abs=1e-9)
            assert row["algbw_gb_per_s"] == pytest.approx(row["size_bytes"] / row["median_s"] / 1e9)
            assert row["busbw_gb_per_s"] == pytest.approx(row["algbw_gb_per_s"] * 2 * (n - 1) / n)
    assert files[1].read_text().startswith("<svg")
    assert sorted(tmp_path.iterdir()) == sorted(files)


def test_on_an_emulated_link_the_prediction_stands_beside(capsys):
    words = "--link ethernet_1g --slowed 200 --ranks 2 --sizes 64K --repeat 3 --warmup 1 -a"
    assert bench_collectives.main([*words.split(), "torch", "ring", "doubling", "auto"]) == 0
    out = capsys.readouterr().out
    assert "ethernet_1g, emulated link: 10 ms + size / 625 KB/s" in out.replace(
        "0.625 MB", "625 KB"
    )
    assert "200 times slower than the real one" in out
    assert "predicted" in out.split("\n\n")[1]
    rows = {name: [float(cell) for cell in cells if "(" not in cell]
            for (_, name), cells in rows_of(out).items()}  # fmt: skip
    chunk_ms, whole_ms = 10 + (1 << 15) / 625, 10 + (1 << 16) / 625
    expected = {"torch": 2 * chunk_ms, "ring": 2 * chunk_ms, "doubling": whole_ms, "auto": whole_ms}
    for name, predicted_ms in expected.items():
        time_ms, *_, shown_ms, ratio = rows[name]
        assert shown_ms == pytest.approx(predicted_ms, rel=0.01)
        assert ratio == pytest.approx(time_ms / predicted_ms, abs=0.02)
        assert 0.98 < ratio < 2  # never before it is due


def test_under_torchrun_the_same_command_takes_its_ranks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bench.py").write_text(
        "import os, sys\n"
        "from helpers.bench_collectives import main\n"
        "assert main(['--ranks', '3']) == 2\n"
        "words = '--sizes 1K --repeat 1 -a torch ring shared_memory --json a.json'\n"
        "sys.exit(main(words.split()))\n"
    )
    done = run("bench.py", nproc_per_node=2)
    assert done.output.count("all-reduce of float32, 2 ranks") == 1
    assert "--ranks: torchrun has started 2 ranks" in done.output
    assert [
        world["world_size"] for world in json.loads((tmp_path / "a.json").read_text())["worlds"]
    ] == [2]


def spoilt_ring():
    """A ring that leaves out the last element, on rank 1."""
    call_of = measure.call_of

    def spoilt(name):
        def call(tensor):
            last = tensor[-1].clone()
            call_of(name)(tensor)
            if name == "ring" and os.environ["RANK"] == "1":
                tensor[-1] = last

        return call

    measure.call_of = spoilt
    measure.measure_world(parse(["--sizes", "1K", "-a", "tree", "ring"]).settings, lambda: None)


def test_wrong_sums_are_named():
    with pytest.raises(RankFailed) as caught:
        run_function(spoilt_ring, nproc_per_node=2)
    assert "ring on 2 ranks sums 256 x torch.float32 wrongly: " in str(caught.value)
    assert "found wrong numbers, 1 on rank 1, expected none" in str(caught.value)


def test_a_rank_that_fails_makes_the_command_fail(monkeypatch, capsys):
    def fail(*_):
        raise RankFailed(1, "RuntimeError", "ring sums wrongly", "here:1")

    monkeypatch.setattr("helpers.bench_collectives.command.measure_on", fail)
    assert bench_collectives.main([]) == 1
    assert "rank 1: RuntimeError: ring sums wrongly" in capsys.readouterr().err


# parts


def world(seconds=(0.1, 0.1, 0.1), predicted_s=None, **options):
    rows = [Row(4, 10**9, name, seconds, seconds, predicted_s) for name in ("torch", "ring")]
    return World(4, "nccl", "NVIDIA H100", tuple(rows), **options)


def test_algbw_and_busbw_of_a_gigabyte_in_a_tenth_of_a_second():
    text = table.table(world((0.05, 0.1, 0.3)), parse([]).settings)
    assert "4 ranks, nccl on NVIDIA H100" in text
    cells = rows_of(text)["1 GB", "ring"]
    assert cells == ["100", "(60.0 - 260)", "10.0", "15.0", "100"]
    legend = table.legend(parse([]).settings)
    assert "it can exceed the link" in legend
    assert all(len(line) <= 100 for line in legend.splitlines())


def test_late_operations_and_what_was_left_out_are_said():
    text = table.table(world(num_late=3, left_out="shared_memory"), parse([]).settings)
    assert "3 operations ended over 5 % after the emulated link would have" in text
    assert "shared_memory needs all ranks on the CPUs of one host: left out" in text


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "runs.json"
    record.write_json(path, [world()], parse([]).settings)
    before = path.read_text()
    assert json.loads(before)["worlds"][0]["rows"][1]["busbw_gb_per_s"] == pytest.approx(15)

    def no_space(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", no_space)
    with pytest.raises(OSError, match="no space left"):
        record.write_whole(path, "half")
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("predicted_s", [None, 2e-3])
def test_the_figure_names_every_series_and_draws_the_same_twice(predicted_s):
    from helpers.figures import to_svg  # ranks import this module, and need no figures
    from helpers.figures.measured_all_reduce import seconds_by_algorithm

    points = {1024 * 8**step: (1e-3, 2e-3, 4e-3, predicted_s) for step in range(4)}
    worlds = {2: dict.fromkeys(NAMES, points), 4: {"ring": points}}

    def draw():
        return seconds_by_algorithm(worlds, "emulated link: " + "slow " * 20)

    axes = draw().axes
    assert len(axes) == 2
    texts = axes[0].texts
    assert {text.get_text() for text in texts} == {name.replace("_", "-") for name in NAMES}
    heights = sorted(math.log(text.xy[1]) for text in texts)
    low, high = (math.log(limit) for limit in axes[0].get_ylim())
    gaps = [above - below for below, above in itertools.pairwise(heights)]
    assert low < heights[0] < heights[-1] < high
    assert min(gaps) > 0.05 * (high - low)
    assert to_svg(draw(), "alt") == to_svg(draw(), "alt")
