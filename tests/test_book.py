"""The book as it is stored: every chapter keeps the rules, and none is missing."""

import functools
import re
from collections import Counter
from pathlib import Path

import chapter_rules
import notebook_cells as cells
import notebook_rules
import pytest
from nbformat import NotebookNode
from normal_form import normal_form

CHAPTERS = cells.chapters()
NUMBERED = [path for path in CHAPTERS if re.match(r"\d\d_", path.name)]


@functools.cache
def stored(path: Path) -> NotebookNode:
    """A chapter, read once for all rules."""
    return cells.read(path)


def by_name(path: Path) -> str:
    return path.stem


def by_rule(rule: notebook_rules.Rule) -> str:
    return rule.__name__


def missing_from_contents(book: Path, contents: list[str]) -> list[str]:
    """Pages of the book that its table of contents lacks, and entries that have no page."""
    found = [*cells.chapters(book), *cells.texts(book)]
    pages = {str(path.relative_to(book.parent).with_suffix("")) for path in found}
    return sorted(pages.symmetric_difference(contents))


def written_twice(scripts: list[str]) -> list[str]:
    return [name for name, count in Counter(scripts).items() if count > 1]


def test_every_page_is_in_the_contents_and_the_reverse():
    assert missing_from_contents(cells.BOOK, cells.toc_files()) == []


def test_a_missing_page_is_found(tmp_path):
    book = tmp_path / "book"
    book.mkdir()
    (book / "rooms").mkdir()
    for name in ("index.md", "01_a.ipynb", "02_b.ipynb", "rooms/c.md"):
        (book / name).touch()
    contents = ["book/index", "book/01_a"]
    assert missing_from_contents(book, contents) == ["book/02_b", "book/rooms/c"]
    contents = [*contents, "book/02_b", "book/rooms/c", "book/03_c"]
    assert missing_from_contents(book, contents) == ["book/03_c"]


def test_chapters_are_numbered_in_their_order():
    """A number may be missing: that of a chapter which is still to come."""
    numbers = [path.name[:2] for path in NUMBERED]
    listed = [name.removeprefix("book/")[:2] for name in cells.toc_files()]
    assert numbers == sorted(set(numbers)) == [n for n in listed if n.isdecimal()]


def test_a_script_is_written_by_exactly_one_cell():
    names = [name for path in CHAPTERS for name, _ in cells.scripts(cells.read(path))]
    assert written_twice(names) == []
    assert written_twice(["01_a.py", "02_b.py", "01_a.py"]) == ["01_a.py"]


@pytest.mark.parametrize("path", CHAPTERS, ids=by_name)
def test_scripts_are_named_after_their_chapter(path):
    for cell in cells.script_cells(cells.read(path)):
        line = cells.SCRIPT_LINE.match(cell.source)
        assert not line["append"]
        chapter = path.stem.partition("_")[0]  # a number, or the first word of another page
        assert re.fullmatch(rf"_run/{chapter}_\w+\.py", line["path"])


@pytest.mark.parametrize("path", CHAPTERS, ids=by_name)
def test_stored_in_the_normal_form(path):
    notebook = cells.read(path)
    is_normal = normal_form(notebook) == notebook  # apart: pytest would compare them by the minute
    assert is_normal, f"python tests/normal_form.py {path.name} puts it right"


@pytest.mark.parametrize("rule", notebook_rules.RULES, ids=by_rule)
@pytest.mark.parametrize("path", CHAPTERS, ids=by_name)
def test_notebooks_keep_the_rule(path, rule):
    assert list(rule(stored(path))) == []


@pytest.mark.parametrize("rule", chapter_rules.RULES, ids=by_rule)
@pytest.mark.parametrize("path", NUMBERED, ids=by_name)
def test_chapters_keep_the_rule(path, rule):
    assert list(rule(stored(path))) == []
