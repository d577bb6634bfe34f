"""The stored form drops what changes from run to run, and nothing that a reader sees."""

import json
import re
import time

import nbformat
import normal_form as forms
import notebook_cells
import pytest
import run_notebooks
from nbformat import NotebookNode, v4
from normal_form import normal_form, normal_text
from sample_notebook import code, printed

SANITIZE = notebook_cells.ROOT / "tests" / "nbval_sanitize.cfg"


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("plain, a\\rb in code\n", "plain, a\\rb in code\n"),
        ("line\r\nnext\r\n", "line\nnext\n"),
        ("10%\r50%\r100%\ndone\n", "100%\ndone\n"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("Overwriting _run/01_a.py\n", "Writing _run/01_a.py\n"),
        ("Overwriting is not good", "Overwriting is not good"),
        ("/tmp/ipykernel_123/456789.py:1: UserWarning", "cell.py:1: UserWarning"),
        ("invalid syntax (3923306522.py, line 1)", "invalid syntax (cell.py, line 1)"),
        ('File "/a/b/site-packages/torch/x.py"', 'File "site-packages/torch/x.py"'),
        ("/opt/py/lib/python3.12/threading.py:5", "python3/threading.py:5"),
        ("(/clone/here/book/_run/01_a.py:3)", "(book/_run/01_a.py:3)"),
        ("/clone/here/helpers/launch/job.py", "helpers/launch/job.py"),
    ],
)
def test_text(text, stored):
    assert normal_text(text) == stored
    assert normal_text(stored) == stored


def messy() -> NotebookNode:
    """As a notebook comes from a kernel and an editor."""
    cell = code("x", "define", "hide-input", execution={"iopub": "2026"}, collapsed=False)
    cell.execution_count = 17
    stream = [printed(word, name) for word, name in [("a", "stdout"), ("w", "stderr")] * 2]
    view = {forms.WIDGET_VIEW: {"model_id": "8f"}, "text/plain": "explore(k)"}
    result = v4.new_output("execute_result", data=view, execution_count=17)
    cell.outputs = [*stream, result]
    notebook = v4.new_notebook(cells=[cell, code("x"), v4.new_code_cell("unrun")])
    notebook.metadata = NotebookNode(
        widgets={"state": 1}, jupytext={}, language_info={"name": "python", "version": "3.12.1"}
    )
    return notebook


def test_runs_and_machines_leave_no_trace():
    normal = normal_form(messy())
    text = json.dumps(normal)
    for trace in ("2026", "model_id", "widgets", "jupytext", "3.12", "17", "collapsed"):
        assert trace not in text
    first, second, unrun = normal.cells
    assert [cell.execution_count for cell in normal.cells] == [1, 2, None]
    folded = {"source_hidden": True}
    assert first.metadata == {"tags": ["define", "hide-input"], "jupyter": folded}
    assert [output.get("text") for output in first.outputs] == ["a\na\n", "w\nw\n", None]
    assert first.outputs[2].execution_count == 1
    assert first.id == second.id.removesuffix("-2") != unrun.id
    nbformat.validate(normal)


def test_it_is_one_form():
    normal = normal_form(messy())
    assert normal_form(normal) == normal
    edited = normal_form(messy())
    edited.cells.insert(0, v4.new_markdown_cell("# New"))
    assert normal_form(edited).cells[1].id == normal.cells[0].id


def test_the_hook_rewrites_and_says_so(tmp_path, capsys):
    path = tmp_path / "01_a.ipynb"
    nbformat.write(messy(), path)
    assert forms.main([path]) == 1
    assert "stored in the normal form" in capsys.readouterr().out
    assert forms.main([path]) == 0


def write(path, *sources, tag=None):
    cells = [v4.new_code_cell(s, metadata={"tags": [tag]} if tag else {}) for s in sources]
    nbformat.write(v4.new_notebook(cells=cells), path)


#: What a kernel that is told to end says where it finds its own sockets closed.
SOCKETS_CLOSED = re.compile(
    r"^ERROR:tornado\.general:.*\nTraceback .*\n(?: .*\n)+zmq\.error\.ZMQError: .*non-socket\n",
    re.M,
)


def test_running_stores_outputs_and_the_same_again(tmp_path, capfd):
    path = tmp_path / "01_a.ipynb"
    write(path, "%%writefile a.py\nx = 1\n", "import os\nprint(os.path.exists('a.py'))")
    assert run_notebooks.run([path]) == 0
    stored = path.read_text()
    assert notebook_cells.read(path).cells[1].outputs[0].text == "True\n"
    assert run_notebooks.run([path]) == 0
    assert path.read_text() == stored
    out, err = capfd.readouterr()
    assert [line.split()[0] for line in out.splitlines()] == ["01_a", "01_a"]
    assert SOCKETS_CLOSED.sub("", err) == ""


@pytest.mark.parametrize(
    ("source", "error"),
    [("1 / 0", "ZeroDivisionError: division by zero"), ("import os; os._exit(1)", "Kernel died")],
)
def test_a_failing_notebook_is_named_and_stays_as_it_was(tmp_path, capsys, source, error):
    bad, good = tmp_path / "01_bad.ipynb", tmp_path / "02_good.ipynb"
    write(bad, "x = 1", source, "print('never')")
    write(good, "1 / 0", tag="raises-exception")
    before = bad.read_bytes()
    assert run_notebooks.run([bad, good]) == 1
    assert bad.read_bytes() == before
    out = capsys.readouterr().out
    assert f"01_bad.ipynb: cell 1 ({source})" in out
    assert error in out
    assert notebook_cells.read(good).cells[0].outputs[0].ename == "ZeroDivisionError"
    assert {path.suffix for path in tmp_path.iterdir()} == {".ipynb"}


def test_long_words_take_no_time():
    """Outputs hold pictures as one word of hundreds of kilobytes, full of slashes."""
    begin = time.perf_counter()
    word = "src=data:image/svg+xml;base64," + "ab/c" * 100_000
    assert normal_text(word) == word
    for pattern in re.findall(r"^regex: (.*)$", SANITIZE.read_text(), re.M):
        re.sub(pattern, "", word)
    assert time.perf_counter() - begin < 2


def test_solutions_are_folded_in_jupyterlab():
    cells = [code("1", "solution"), code("2", "hide-input"), code("3", "define")]
    stored = normal_form(v4.new_notebook(cells=cells)).cells
    assert [cell.metadata.get("jupyter") for cell in stored] == [
        {"source_hidden": True, "outputs_hidden": True},
        {"source_hidden": True},
        None,
    ]
