"""Three training scripts as a reader would write them: right as they are, and with each fault."""

import functools
from pathlib import Path

import pytest
import torch
from gates_together import gates_together

from helpers.compare.outcome import Outcome, Plan
from helpers.compare.same_training import same_training
from helpers.figures import gate as figures
from helpers.gate.examples import FAULTS, SCRIPTS, path_of
from helpers.gate.examples.__main__ import main
from helpers.gate.script import training_of
from helpers.launch import run


def gate_of(path: Path) -> list[Outcome]:
    plan = Plan(micro_batches=(3,), ranks=(2,))
    return list(same_training(training_of(path, 3, torch.float64), plan))


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory) -> dict[str, list[Outcome]]:
    """The outcomes of each script and of each fault, in two launches."""
    folder = tmp_path_factory.mktemp("faults")
    paths = {name: path_of(name) for name in SCRIPTS}
    for index, fault in enumerate(FAULTS):
        paths[fault.name] = folder / f"fault_{index}.py"
        paths[fault.name].write_text(fault.text())
    return gates_together({name: functools.partial(gate_of, path) for name, path in paths.items()})


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_that_is_right_is_the_same_in_every_way_to_split_it(verdicts, name):
    assert [outcome.is_same for outcome in verdicts[name]] == [True, True]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_script_with_a_fault_differs_and_the_cause_is_named(verdicts, fault):
    first = next(outcome for outcome in verdicts[fault.name] if outcome.is_same is False)
    assert fault.says in first.cause


def test_each_script_has_five_faults_or_more():
    scripts = [fault.script for fault in FAULTS]
    assert all(scripts.count(name) >= 5 for name in SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_also_runs_by_itself(name):
    assert "rank 0" in run(path_of(name), nproc_per_node=2, timeout_s=30).output[:200]


def test_the_list_names_every_script_and_every_fault(capsys):
    assert main([]) == 0
    said = capsys.readouterr().out
    assert all(word in said for word in (*SCRIPTS, *(fault.name for fault in FAULTS)))


def test_a_script_and_a_fault_are_written_and_never_over_another_file(tmp_path, capsys):
    file = tmp_path / "my_training.py"
    assert main(["plain_loop", str(file)]) == 0
    assert file.read_text() == path_of("plain_loop").read_text()
    assert main(["3", str(file)]) == 2
    assert "exists" in capsys.readouterr().err
    assert file.read_text() == path_of("plain_loop").read_text()
    assert main(["3", str(tmp_path / "b.py")]) == 0
    assert (tmp_path / "b.py").read_text() == FAULTS[3].text()


@pytest.mark.parametrize("words", [["no_such", "c.py"], ["99", "c.py"], ["plain_loop"]])
def test_a_wrong_word_is_told_and_writes_nothing(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert "expected" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_figure_has_a_point_for_each_error_and_wants_the_same_scripts():
    right, faulty = {"a": [0.0], "b": [1e-16]}, {"a": [1.0, 2.0], "b": [1e-3]}
    figure = figures.errors(right, faulty, allowed=1e-12)
    drawn = [list(line.get_xdata()) for line in figure.axes[0].lines]
    assert drawn[:4] == [[figures.SMALLEST], [1.0, 2.0], [1e-16], [1e-3]]
    with pytest.raises(ValueError, match="expected the same scripts"):
        figures.errors(right, {"a": [1.0]}, allowed=1e-12)
