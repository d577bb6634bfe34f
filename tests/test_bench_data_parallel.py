"""DistributedDataParallel beside torch's: the bounds held, and how the command reports them."""

import json
import re
from dataclasses import replace

import pytest
import torch
from predicted_plans import predicted_s

from helpers import bench_data_parallel
from helpers.bench_data_parallel import cpu, links, record, rows, table, turns
from helpers.bench_data_parallel.arguments import MEASUREMENTS, parse
from helpers.bench_data_parallel.contenders import CONTROL, OURS, OURS_SHARED, TORCH
from helpers.bench_data_parallel.overlap import TORCH_DEFAULT, WRAPS, remark
from helpers.bench_data_parallel.rows import Bound, Row
from helpers.bench_data_parallel.training import LARGE, SMALL
from helpers.buckets import plan_buckets
from helpers.launch import RankFailed, run_function
from helpers.process_group import process_group

#: A machine on which torch's class is further than this from itself says nothing of ours.
STEADY = 0.02
#: Of some 250 operations; a machine that has more of them late is too slow for the link.
MANY_LATE = 25
TRIES = 3
#: Wider than the bounds of the command, which wants a machine that does nothing else.
GATES = {OURS: 1.10, OURS_SHARED: 1.05}
#: The command holds 5 %, on a machine that does nothing else; tests run beside others.
WITHIN = 1.15


# bounds


def measure_small() -> list[Row]:
    names = TORCH, OURS, OURS_SHARED, CONTROL
    with process_group(backend="gloo"):
        return cpu.measure_model(replace(SMALL, steps_a_turn=2), 10, lambda: None, names)


def test_cpu_time_of_a_step_beside_torch():
    tries = []
    for _ in range(TRIES):
        measured = run_function(measure_small, nproc_per_node=2, timeout_s=120)[0]
        ratios = {row.name: rows.ratio(measured, row, TORCH) for row in measured}
        if ratios[OURS] <= GATES[OURS] and ratios[OURS_SHARED] <= GATES[OURS_SHARED]:
            return
        tries.append(ratios)
    if all(abs(ratios[CONTROL] - 1) > STEADY for ratios in tries):
        pytest.skip(f"torch's class was {STEADY:.0%} off itself in {TRIES} of {TRIES} tries")
    pytest.fail(f"found {tries}, expected at most {GATES}")


def test_memory_beside_torch_through_the_command(tmp_path, capsys):
    path = tmp_path / "memory.json"
    words = ["memory", "--runs", "1", "--rounds", "1", "--json", str(path)]
    assert bench_data_parallel.main(words) == 0
    out, err = capsys.readouterr()
    verdicts = re.findall(r"\bmet$|MISSED", out, re.MULTILINE)
    assert len(verdicts) == 2 * 4  # of two models with two settings, in the table and at the end
    assert "run 1 of 1: 100%" in err

    found = json.loads(path.read_text())
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", found["date"])
    assert found["machine"]["torch"] == torch.__version__
    (run,) = found["runs"]
    few = {
        b["setting"].rpartition("=")[2]: b["ratio"]
        for b in run["bounds"]
        if " 16 tokens" in b["setting"]
    }
    assert few["True)"] <= 0.55
    assert few["False)"] <= 1.0

    by_name = {(row["setting"], row["name"]): row["median"] for row in run["rows"]}
    gradients_mb = sum(param.nbytes for param in LARGE.make().parameters()) / 1e6
    for (setting, name), megabytes in by_name.items():
        if "by the kernel" in setting:  # what LiveBytes counts is what is there, C++'s too
            counted = by_name[setting.removesuffix(", resident memory by the kernel"), name]
            # gloo holds scratch for what is under way; a copy of all gradients would be more
            assert 0.95 * counted < megabytes < counted + gradients_mb


def step_on_the_first_link() -> list[Row]:
    words, link = next(iter(links.LINKS.items()))
    wraps = {TORCH_DEFAULT: WRAPS[TORCH_DEFAULT], links.PLANNED: links.planned(link)}
    return links.measure_link(words, link, wraps, {}, 2, lambda: None)


def test_overlap_comes_to_the_lower_bound_and_beats_torch_by_default():
    for _ in range(TRIES):
        measured = run_function(step_on_the_first_link, nproc_per_node=2)[0]
        least = {row.name: min(row.samples) for row in measured}
        assert least[links.LOWER_BOUND] <= least[links.PLANNED]  # a bound is a bound
        assert least[links.PLANNED] < 0.9 * least[TORCH_DEFAULT]
        if least[links.PLANNED] <= WITHIN * least[links.LOWER_BOUND]:
            return
    if least[links.LATE] > MANY_LATE:
        pytest.skip(f"{least[links.LATE]} operations were late: this machine is too busy")
    pytest.fail(f"found {least}, expected at most {WITHIN} of {links.LOWER_BOUND}")


@pytest.mark.parametrize("words", links.LINKS)
def test_planned_buckets_come_near_the_best_of_a_sweep(words):
    link = links.LINKS[words]
    layers = [torch.empty(links.LAYER_BYTES // 4, device="meta") for _ in links.READY_S]

    def step_s(plan):
        counts = [len(bucket) for bucket in plan]
        return predicted_s(counts, links.LAYER_BYTES, links.READY_S, link, **links.COMPUTE)

    sweep = [step_s(plan_buckets(layers, n * links.LAYER_BYTES)) for n in range(1, 25)]
    planned = plan_buckets(layers, link=link, ready_s=links.READY_S, world_size=2)
    assert step_s(planned) <= min(sweep)


# how they are measured


def take_turns_and_note() -> tuple[list[str], dict, dict]:
    noted = []

    def turn_of(name):
        def turn():
            noted.append(name)
            return float(len(noted))

        return turn

    with process_group(backend="gloo") as ranks:
        ticks = []
        samples = turns.take_turns(
            {name: turn_of(name) for name in "ABC"}, 2, lambda: ticks.append(1), warmup=1
        )
        summed = turns.of_all_ranks({"rank": [ranks.rank, 10.0]}, sum)
    return noted, samples, {"ticks": len(ticks), **summed}


def test_contenders_take_turns_forwards_and_backwards():
    noted, samples, other = run_function(take_turns_and_note, nproc_per_node=2)[1]
    assert "".join(noted) == "ABCCBAABC"
    assert samples == {"A": [6, 7], "B": [5, 8], "C": [4, 9]}
    assert other == {"ticks": 3, "rank": (1, 20)}


# the command


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "the following arguments are required: what"),
        ("speed", "argument what: invalid choice: 'speed'"),
        ("cpu --rounds 0", "argument --rounds/-r: found '0', expected a number, 1 or more"),
        ("cpu --runs x", "argument --runs: found 'x', expected a number, 1 or more"),
        ("cpu --json runs.txt", "argument --json: found 'runs.txt', expected a name with .json"),
        ("cpu --json no_such/a.json", "no folder 'no_such' to write into"),
    ],
)
def test_unusable_arguments_are_named(words, message, capsys):
    with pytest.raises(SystemExit) as caught:
        parse(words.split())
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_help_says_what_each_measures(capsys):
    with pytest.raises(SystemExit):
        parse(["--help"])
    text = capsys.readouterr().out
    assert all(re.search(rf"^  {what} +\S", text, re.MULTILINE) for what in MEASUREMENTS)


def a_run(ours, unit="ms"):
    bounds = Bound(TORCH, 1.04), Bound("lower bound", None)
    return [
        Row("GPT", TORCH, (9.0, 10.0, 30.0), unit),
        Row("GPT", "lower bound", (8.0,), unit),
        Row("GPT", OURS, ours, unit, bounds),
    ]


def test_a_table_says_median_spread_and_ratios():
    lines = table.table(a_run((10.3, 10.2, 12.0))).splitlines()
    assert lines[0] == "GPT"
    assert lines[2].split("  ")[0] == TORCH
    assert re.search(r"^ours +10.3 ms +\(10.2 - 12\) +torch, views +1.030 +1.04  met$", lines[4])
    assert re.search(r"^ +lower bound +1.288$", lines[5])


def test_all_runs_are_printed_and_a_missed_bound_is_said_to_be_missed():
    runs = [a_run((10.3,)), a_run((10.5,)), a_run((10.0,))]
    assert "10.5 ms" in table.table(runs[1])
    assert "MISSED" in table.table(runs[1])
    last = table.summary(runs).splitlines()[-1]
    assert re.search(
        r"^GPT: ours +torch, views +1.030 +1.050 +1.000 +1.04  MISSED in 1 of 3$", last
    )
    assert table.summary(runs[::2]).endswith("met")


def test_the_remark_counts_the_links_on_which_ours_is_better():
    def on(link, ours_ms):
        return [Row(link, TORCH_DEFAULT, (10.0,), "ms"), Row(link, links.PLANNED, (ours_ms,), "ms")]

    assert remark([*on("a", 9.0), *on("b", 10.0), *on("c", 9.9)]).endswith(
        "on 2 of 3 links, expected 2 at the least: met"
    )
    assert remark([*on("a", 9.0), *on("b", 10.0), *on("c", 11.0)]).endswith("MISSED")


def test_the_record_holds_every_sample_and_no_name_of_the_machine():
    found = record.record("CPU time", [a_run((10.5, 10.7))], 2)
    assert json.loads(json.dumps(found)) == found
    assert found["runs"][0]["rows"][2]["samples"] == [10.5, 10.7]
    assert found["runs"][0]["bounds"] == [
        {"setting": "GPT", "name": OURS, "to": TORCH, "ratio": 1.06, "at_most": 1.04,
         "is_met": False}
    ]  # fmt: skip
    assert found["machine"].keys() >= {"cpu", "cores", "python", "torch"}
    assert "/" not in json.dumps({**found, "machine": {**found["machine"], "cpu": ""}})


def test_a_rank_that_fails_makes_the_command_fail(monkeypatch, capsys):
    def fail(*_, **__):
        raise RankFailed(1, "RuntimeError", "no more memory", "here:1")

    monkeypatch.setattr("helpers.bench_data_parallel.command.run_function_with_bar", fail)
    assert bench_data_parallel.main(["memory"]) == 1
    assert "rank 1: RuntimeError: no more memory" in capsys.readouterr().err
