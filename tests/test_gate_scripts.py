"""Three training scripts as a reader would write them: right as they are, and with each fault."""

import functools
import importlib.util
from pathlib import Path

import pytest
import torch
from gates_together import gates_together

from helpers.compare.outcome import Outcome, Plan
from helpers.compare.same_training import same_training
from helpers.gate.script import training_of
from helpers.launch import run

FOLDER = Path(__file__).parent / "gate_scripts"
spec = importlib.util.spec_from_file_location("faults", FOLDER / "faults.py")
faults = importlib.util.module_from_spec(spec)
spec.loader.exec_module(faults)


def gate_of(path: Path) -> list[Outcome]:
    plan = Plan(micro_batches=(3,), ranks=(2,))
    return list(same_training(training_of(path, 3, torch.float64), plan))


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory) -> dict[str, list[Outcome]]:
    """The outcomes of each script and of each fault, in two launches."""
    folder = tmp_path_factory.mktemp("faults")
    paths = {name: FOLDER / f"{name}.py" for name in faults.SCRIPTS}
    for index, fault in enumerate(faults.FAULTS):
        paths[fault.name] = folder / f"fault_{index}.py"
        paths[fault.name].write_text(fault.text())
    return gates_together({name: functools.partial(gate_of, path) for name, path in paths.items()})


@pytest.mark.parametrize("name", faults.SCRIPTS)
def test_a_script_that_is_right_is_the_same_in_every_way_to_split_it(verdicts, name):
    assert [outcome.is_same for outcome in verdicts[name]] == [True, True]


@pytest.mark.parametrize("fault", faults.FAULTS, ids=lambda fault: fault.name)
def test_a_script_with_a_fault_differs_and_the_cause_is_named(verdicts, fault):
    first = next(outcome for outcome in verdicts[fault.name] if outcome.is_same is False)
    assert fault.says in first.cause


def test_each_script_has_five_faults_or_more():
    scripts = [fault.script for fault in faults.FAULTS]
    assert all(scripts.count(name) >= 5 for name in faults.SCRIPTS)


@pytest.mark.parametrize("name", faults.SCRIPTS)
def test_a_script_also_runs_by_itself(name):
    assert "rank 0" in run(FOLDER / f"{name}.py", nproc_per_node=2, timeout_s=30).output[:200]
