"""The reader of notebooks finds chapters, scripts and definitions."""

import nbformat
import notebook_cells as cells
import pytest
from nbformat import v4


@pytest.fixture
def book(tmp_path):
    folder = tmp_path / "book"
    for name in ("02_b", "01_a", ".ipynb_checkpoints/01_a", "_run/x", "bug_museum/01_c"):
        path = folder / f"{name}.ipynb"
        path.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook(), path)
    return folder


def notebook():
    sources = [
        (
            "%load_ext helpers.launch\nimport math\nfrom pathlib import Path\nPath('_run').mkdir()",
            [],
        ),
        ("def area(r):\n    return math.pi * r**2", ["define"]),
        ("area = None", []),
        ("%%writefile _run/01_a.py\nprint(1)", []),
        ("%%writefile _run/01_b.py\n", []),
        ("answer = area(1)", ["solution"]),
    ]
    return v4.new_notebook(cells=[v4.new_code_cell(s, metadata={"tags": t}) for s, t in sources])


def test_chapters_are_found_by_pattern_and_number(book):
    names = [str(path.relative_to(book)) for path in cells.chapters(book)]
    assert names == ["01_a.ipynb", "02_b.ipynb", "bug_museum/01_c.ipynb"]
    assert cells.chapter("02", book).name == "02_b.ipynb"
    with pytest.raises(ValueError, match="found 0 chapters '07', expected 1; the book has 01_a"):
        cells.chapter("07", book)


def test_scripts_come_with_their_text(book):
    found = cells.scripts(cells.read(book / "01_a.ipynb"))
    assert found == [("01_a.py", "print(1)\n"), ("01_b.py", "\n")]


def test_definitions_run_after_the_first_cell_only(book):
    path = book / "01_a.ipynb"
    assert cells.namespace(path)["area"](2) == pytest.approx(12.566, abs=1e-3)
    solution = cells.tagged(cells.read(path), "solution")
    assert cells.namespace(path, *solution)["answer"] == pytest.approx(3.1416, abs=1e-4)
    assert not (book / "_run" / "01_a.py").exists()


def test_the_contents_are_read_to_any_depth(tmp_path):
    toc = tmp_path / "_toc.yml"
    toc.write_text(
        "root: a\nparts:\n- chapters:\n  - file: b\n    sections:\n    - file: c\n  - file: d\n"
    )
    assert cells.toc_files(toc) == ["a", "b", "c", "d"]
