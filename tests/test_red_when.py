"""Strict nbval goes red when a claim stops being true: a notebook spoiled in one way at a time."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from nbformat import NotebookNode, v4
from notebook_cells import ROOT, chapter, code_cells, read, tags, write
from sample_notebook import code, printed

SETUP = "from pathlib import Path\nPath('_run').mkdir(exist_ok=True)\n%load_ext helpers.launch"
SCRIPT = "from helpers.launch import report\nreport(answer=6 * 7)\n"
WAYS = {  # the script's text, what is stored of its result, and what is said
    "as it was": (SCRIPT, "42", None),
    "a stored output edited": (SCRIPT, "41", "mismatch 'stdout'"),
    "a script that raises": (
        SCRIPT.replace("6 * 7", "6 // 0"), "42", "rank 0: ZeroDivisionError"
    ),
    "a script's number changed": (SCRIPT.replace("6 * 7", "6 * 8"), "42", "mismatch 'stdout'"),
}  # fmt: skip


def notebook():
    """Each way in two cells: one that writes its script, one that launches it."""
    cells = [code(SETUP)]
    for index, (script, stored, _) in enumerate(WAYS.values()):
        path = f"_run/script_{index}.py"
        launch = f"result = %torchrun --nproc-per-node 2 {path}\nprint(result['answer'])"
        cells.append(code(f"%%writefile {path}\n{script}", output=printed(f"Writing {path}")))
        cells.append(code(launch, output=printed(stored)))
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    return v4.new_notebook(cells=cells, metadata=kernel)


def nbval(path: Path, *options: str, env: dict[str, str] | None = None):
    sanitize = ROOT / "tests" / "nbval_sanitize.cfg"
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbval"]
    return subprocess.run(
        [*words, str(path), f"--nbval-sanitize-with={sanitize}", *options],
        cwd=path.parent,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.fixture(scope="module")
def judged(tmp_path_factory) -> list[ElementTree.Element]:
    """The cells of the notebook, one test case each, in one run of nbval."""
    path = tmp_path_factory.mktemp("red") / "sample.ipynb"
    write(notebook(), path)
    done = nbval(path, "--junitxml=report.xml")
    assert done.returncode == 1, done.stdout
    return list(ElementTree.parse(path.with_name("report.xml")).iter("testcase"))


@pytest.mark.parametrize("way", WAYS)
def test_a_spoiled_notebook(judged, way):
    written, launched = judged[1:][2 * list(WAYS).index(way) :][:2]
    assert list(written) == []
    said = WAYS[way][2]
    assert bool(list(launched)) == bool(said)
    if said:
        text = "".join(part.get("message", "") + (part.text or "") for part in launched)
        assert said in text


def what_concerns(name: str, notebook: NotebookNode) -> NotebookNode:
    """The notebook, less the cells that neither define anything nor use `name`."""
    first, *others = code_cells(notebook)
    kept = [cell for cell in others if "define" in tags(cell) or name in cell.source]
    return v4.new_notebook(cells=[first, *kept], metadata=notebook.metadata)


def test_a_helper_that_divides_by_one_too_many_turns_its_chapter_red(tmp_path):
    helpers = tmp_path / "helpers"
    shutil.copytree(ROOT / "helpers", helpers, ignore=shutil.ignore_patterns("__pycache__"))
    spoiled = helpers / "accumulate" / "gradients.py"
    right = "return world_size / total if total else 0.0"
    assert right in spoiled.read_text()
    spoiled.write_text(spoiled.read_text().replace(right, "return world_size / (total + 1)"))
    path = tmp_path / chapter("03").name
    write(what_concerns("accumulate_gradients", read(chapter("03"))), path)
    done = nbval(path, "-x", env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 1, done.stdout
    said = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)  # colours
    assert "assert error < 1e-12" in said
    assert "AssertionError" in said
