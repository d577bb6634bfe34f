"""Strict nbval goes red when a claim stops being true: a notebook spoiled in one way at a time."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from nbformat import v4
from notebook_cells import ROOT, chapter, write
from sample_notebook import code, printed

SETUP = "from pathlib import Path\nPath('_run').mkdir(exist_ok=True)\n%load_ext helpers.launch"
SCRIPT = "%%writefile _run/script.py\nfrom helpers.launch import report\nreport(answer=6 * 7)\n"
LAUNCH = "result = %torchrun --nproc-per-node 2 _run/script.py\nprint(result['answer'])"


def notebook(script=SCRIPT, stored="42"):
    cells = [
        code(SETUP),
        code(script, output=printed("Writing _run/script.py")),
        code(LAUNCH, output=printed(stored)),
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    return v4.new_notebook(cells=cells, metadata=kernel)


def nbval(path: Path, *options: str, env: dict[str, str] | None = None):
    sanitize = ROOT / "tests" / "nbval_sanitize.cfg"
    words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--nbval"]
    return subprocess.run(
        [*words, str(path), f"--nbval-sanitize-with={sanitize}", *options],
        cwd=path.parent,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("spoiled", "expected", "said"),
    [
        ({}, 0, "3 passed"),
        ({"stored": "41"}, 1, "mismatch 'stdout'"),
        ({"script": SCRIPT.replace("6 * 7", "6 // 0")}, 1, "rank 0: ZeroDivisionError"),
        ({"script": SCRIPT.replace("6 * 7", "6 * 8")}, 1, "mismatch 'stdout'"),
    ],
    ids=[
        "as it was",
        "a stored output edited",
        "a script that raises",
        "a script's number changed",
    ],
)
def test_a_spoiled_notebook(tmp_path, spoiled, expected, said):
    path = tmp_path / "sample.ipynb"
    write(notebook(**spoiled), path)
    done = nbval(path)
    assert done.returncode == expected, done.stdout
    assert said in done.stdout


def test_a_helper_that_divides_by_one_too_many_turns_its_chapter_red(tmp_path):
    helpers = tmp_path / "helpers"
    shutil.copytree(ROOT / "helpers", helpers, ignore=shutil.ignore_patterns("__pycache__"))
    spoiled = helpers / "accumulate" / "gradients.py"
    right = "return world_size / total if total else 0.0"
    assert right in spoiled.read_text()
    spoiled.write_text(spoiled.read_text().replace(right, "return world_size / (total + 1)"))
    path = shutil.copy(chapter("03"), tmp_path)
    done = nbval(Path(path), env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 1, done.stdout
    assert "AssertionError" in done.stdout or "mismatch" in done.stdout
