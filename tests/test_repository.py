"""The repository's own files: sizes, workflows, hooks, and what make says when it cannot work."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from file_rules import findings
from notebook_cells import ROOT
from run_all import notebook_seconds, run

BIN = Path(sys.executable).parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git repository")
    return [ROOT / name for name in listed.stdout.split("\0") if name]


def test_files_keep_the_rules():
    assert [finding for path in tracked() for finding in findings(path)] == []


@pytest.mark.parametrize(
    ("name", "content", "finding"),
    [
        ("a.py", b"x = 1\n", None),
        ("__init__.py", b"", None),
        ("a.png", b"\0\1", None),
        ("a.py", b"x = 1", "newline"),
        ("a.py", b"x = 1\n\n", "newline"),
        ("a.svg", b"x" * 500_000 + b"\n", "expected at most 500000"),
        ("a.ipynb", b"x" * 500_000 + b"\n", None),
        ("a.ipynb", b"x" * 1_500_000 + b"\n", "expected at most 1500000"),
    ],
)
def test_files_that_break_them_are_found(tmp_path, name, content, finding):
    (tmp_path / name).write_bytes(content)
    found = list(findings(tmp_path / name))
    assert len(found) == bool(finding)
    assert finding is None or finding in found[0]


def check_workflows(paths: list[Path]) -> subprocess.CompletedProcess:
    command = [BIN / "check-jsonschema", "--builtin-schema", "vendor.github-workflows", *paths]
    return subprocess.run(command, capture_output=True, text=True)


def test_workflows_are_valid_and_a_spoilt_one_is_not(tmp_path):
    spoilt = tmp_path / "spoilt.yml"
    spoilt.write_text(WORKFLOWS[0].read_text().replace("runs-on:", "runs-where:"))
    done = check_workflows([*WORKFLOWS, spoilt])
    assert done.returncode == 1
    assert str(spoilt) in done.stdout
    assert not any(str(path) in done.stdout for path in WORKFLOWS), done.stdout


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_may_do_little_and_pin_what_they_use(path):
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    assert "pull_request_target" not in path.read_text()
    for job in workflow["jobs"].values():
        assert set(job.get("permissions", {})) <= {"pages", "id-token"}
        for used in [step["uses"] for step in job.get("steps", []) if "uses" in step]:
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", used)


def test_hooks_name_programs_that_are_there():
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    for hook in config["repos"][0]["hooks"]:
        program, *words = hook["entry"].split()
        assert (BIN / Path(program).name).exists()
        assert all((ROOT / word).exists() for word in words if word.startswith("tests/"))


def test_all_stages_run_and_the_failed_ones_are_named(capsys):
    seen = []
    stages = [
        ("first", lambda: seen.append(1)),  # falsy: it failed
        ("second", lambda: seen.append(2) or True),
    ]
    assert run(stages) == 1
    assert seen == [1, 2]
    assert capsys.readouterr().out.endswith("FAILED: first\n")
    assert run(stages[1:]) == 0
    assert "Everything passed." in capsys.readouterr().out


def test_a_changed_tree_is_a_failure(monkeypatch, capsys):
    states = iter(["", " M book/01.ipynb"])
    monkeypatch.setattr("run_all.tree", lambda: next(states))
    assert run([("only", lambda: True)]) == 1
    assert "FAILED: clean tree" in capsys.readouterr().out


def test_seconds_are_summed_by_notebook(tmp_path):
    case = '<testcase classname="book.{}" name="Cell 0" time="{}"/>'
    cases = case.format("01_a.ipynb", 1.5) + case.format("01_a.ipynb", 2) + case.format("b", 1)
    for name, found in (("a", cases), ("b", case.format("05_b.ipynb", 2))):
        report = f"<testsuites><testsuite>{found}</testsuite></testsuites>"
        (tmp_path / f"{name}.xml").write_text(report)
    assert notebook_seconds(tmp_path) == {"01_a": 3.5, "b": 1.0, "05_b": 2.0}


@pytest.fixture
def clone(tmp_path) -> Path:
    """A folder with what make needs, and no .venv."""
    for name in ("Makefile", "requirements.txt", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def make(folder: Path, *words: str) -> subprocess.CompletedProcess:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    return subprocess.run(
        ["make", *words], cwd=folder, env=environment, capture_output=True, text=True
    )


def fake(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def own_words(done: subprocess.CompletedProcess) -> list[str]:
    """What make's recipe said; make itself adds a line that starts with its name."""
    lines = (done.stdout + done.stderr).splitlines()
    return [line for line in lines if not line.startswith("make")]


@pytest.mark.parametrize(
    ("python", "said"),
    [
        (
            'case "$*" in *version_info*) exit 1;; *) echo Python 3.9.1;; esac',
            "needs Python 3.11 or newer, and {} is Python 3.9.1",
        ),
        ("echo of no use; exit 1", "{} does not run here"),
        ('case "$*" in *ensurepip*) exit 1;; esac', "{} lacks the module venv"),
    ],
)
def test_a_python_that_cannot_make_the_environment_is_named(clone, python, said):
    path = fake(clone / "bin" / "python", python)
    done = make(clone, "book", f"PYTHON={path}")
    assert done.returncode != 0
    (sentence,) = own_words(done)
    assert said.format(path) in sentence
    assert not (clone / ".venv").exists()


def test_another_jupyter_book_is_named(clone):
    python = fake(clone / ".venv" / "bin" / "python", 'case "$*" in *jupyter-book*) exit 1;; esac')
    (clone / ".venv" / ".installed").touch()
    done = make(clone, "book")
    assert done.returncode != 0
    (sentence,) = own_words(done)
    assert "Jupyter Book 1 is not what .venv holds" in sentence
    assert python.exists()


def test_make_help_lists_what_can_be_made():
    said = make(ROOT, "help").stdout
    for target in ("book", "test", "lab", "run", "clean"):
        assert f"make {target} " in said
    assert make(ROOT).stdout == said
