"""The museum's pages: rows with sources and tests, exhibits with all their parts, the drawing."""

import ast
import functools
import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from notebook_cells import BOOK, ROOT

MUSEUM = BOOK / "bug_museum"
DRAWING = BOOK / "drawings" / "loss_differs.svg"
ROW = re.compile(r"^\* - \((bug-[\w-]+)\)=$", re.M)
TEST = re.compile(r"`tests/(test_\w+\.py)::(test_\w+)`")
LINK = re.compile(r"\{ref\}`(?:[^`<]*<)?((?:bug|exhibit)-[\w-]+)>?`")
#: What every exhibit has, in this order; CODE is a cell that runs.
PARTS = (
    "**Where.**", "](https://github.com/", "**Symptom.**", "CODE", "CODE", "{admonition} Find it",
    "{dropdown} Hint 1", "{dropdown} Hint 2", "**The verdict.**", "CODE", "**The fix.**", "CODE",
    "**The check.**", "CODE", "How to recognise it:", "{doc}`",
)  # fmt: skip

# the gallery


@functools.cache
def page() -> str:
    return (MUSEUM / "index.md").read_text()


def rows(text: str) -> dict[str, str]:
    """The text of each row of the table, by its label."""
    _, *parts = ROW.split(text)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def symptoms(text: str) -> dict[str, list[str]]:
    """What each symptom links to."""
    section = text.split("\n## By symptom\n")[1].split("\n## ")[0]
    _, *parts = re.split(r"^### (.+)$", section, flags=re.M)
    return {name: LINK.findall(part) for name, part in zip(parts[::2], parts[1::2], strict=True)}


def linked_from_symptoms() -> set[str]:
    return set().union(*symptoms(page()).values())


def exhibits(folder: Path = MUSEUM) -> list[str]:
    """The labels of the exhibits in the rooms that there are."""
    rooms = "".join(path.read_text() for path in sorted(folder.glob("room_*.ipynb")))
    return re.findall(r"\((exhibit-\w+)\)=", rooms)


def missing_tests(text: str) -> list[str]:
    """The tests that the text names and the repository lacks."""
    return [f"{file}::{name}" for file, name in TEST.findall(text) if name not in names_in(file)]


@functools.cache
def names_in(file: str) -> set[str]:
    path = ROOT / "tests" / file
    body = ast.parse(path.read_text()).body if path.exists() else []
    return {node.name for node in body if isinstance(node, ast.FunctionDef)}


def test_every_bug_names_a_test_that_exists():
    found = rows(page())
    assert len(found) == page().count("\n* - (bug-") > 30
    assert [label for label, text in found.items() if not TEST.search(text)] == []
    assert missing_tests(page()) == []


def test_every_bug_has_a_source_and_is_under_a_symptom():
    for label, text in rows(page()).items():
        assert "](https://github.com/" in text, label
        assert label in linked_from_symptoms()


def test_every_symptom_leads_somewhere_and_every_link_to_a_bug_or_an_exhibit():
    found = symptoms(page())
    assert len(found) >= 10
    assert [name for name, links in found.items() if not links] == []
    labels = {link for link in LINK.findall(page()) if link.startswith("bug-")}
    assert labels <= rows(page()).keys()


def test_every_exhibit_is_under_a_symptom():
    assert set(exhibits()) <= linked_from_symptoms()


def test_what_is_missing_is_found(tmp_path):
    assert missing_tests("`tests/test_gate.py::test_never`") == ["test_gate.py::test_never"]
    assert missing_tests("`tests/test_none.py::test_x`") == ["test_none.py::test_x"]
    text = (
        "\n## By symptom\n\n### Slow\n\n- {ref}`one <bug-a>`, {ref}`exhibit-b`\n\n### Odd\n\n## Z"
    )
    assert symptoms(text) == {"Slow": ["bug-a", "exhibit-b"], "Odd": []}
    (tmp_path / "room_x.ipynb").write_text('["(exhibit-z9)=\\n"]')
    assert exhibits(tmp_path) == ["exhibit-z9"]


# exhibits


def cells_of(path: Path) -> list[dict]:
    cells = json.loads(path.read_text())["cells"]
    return [{"kind": cell["cell_type"], "text": "".join(cell["source"])} for cell in cells]


def exhibits_of(cells: list[dict]) -> dict[str, str]:
    """Each exhibit as one text, by its label: CODE stands for a cell of code."""
    text = "\n".join(cell["text"] if cell["kind"] == "markdown" else "CODE" for cell in cells)
    _, *parts = re.split(r"^\((exhibit-\w+)\)=$", text, flags=re.M)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def missing_part(exhibit: str) -> str | None:
    """The first part that does not come after those before it."""
    start = 0
    for part in PARTS:
        found = exhibit.find(part, start)
        if found < 0:
            return part
        start = found + len(part)
    return None


ROOMS = {path.stem: exhibits_of(cells_of(path)) for path in sorted(MUSEUM.glob("room_*.ipynb"))}


def test_every_exhibit_has_all_parts_in_one_order():
    found = {label: text for room in ROOMS.values() for label, text in room.items()}
    assert len(found) == len(exhibits()) >= 13
    assert {label: missing_part(text) for label, text in found.items()} == dict.fromkeys(found)
    assert [label for label, text in found.items() if not re.search(r"\b20[12]\d\b", text)] == []


@pytest.mark.parametrize("part", PARTS[2:])
def test_a_part_that_is_missing_is_found(part):
    whole = "\n".join(PARTS)
    assert missing_part(whole) is None
    cut = whole[::-1].replace(part[::-1], "", 1)[::-1]  # the last one of its kind
    assert missing_part(cut) == part


# the drawing

QUESTION = re.compile(r"^(\d)\. \*\*(.+?)\*\*", re.M)
NO = re.compile(r"^   - \*No(?:, )?([^:*]*):?\*", re.M)


def listed(text: str) -> list[tuple[str, list[str]]]:
    """The list's questions, and what it says of each no."""
    section = text.split("## My loss differs on several GPUs")[1].split("\n## ")[0]
    _, *parts = QUESTION.split(section)
    triples = zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    return [(f"{number} {name}", NO.findall(rest)) for number, name, rest in triples]


def drawn(svg: str) -> list[tuple[str, list[str]]]:
    """The drawing's questions, and the first words of each line beside a no."""
    root = ElementTree.fromstring(svg)
    questions = [each.text for each in root.iterfind(".//{*}text[@class='question']")]
    boxes = [root.find(f".//{{*}}g[@id='no-{n}']") for n in range(1, len(questions) + 1)]
    lines = [[cases(text) for text in box.iterfind("{*}text")] for box in boxes]
    return list(zip(questions, lines, strict=True))


def cases(text: ElementTree.Element) -> str:
    case = text.find("{*}tspan[@class='case']")
    return "" if case is None else case.text


def test_the_drawing_says_what_the_list_says():
    assert len(listed(page())) == 6
    assert drawn(DRAWING.read_text()) == listed(page())


def test_another_word_in_the_drawing_is_seen():
    spoilt = DRAWING.read_text().replace("in one parameter", "in some parameter")
    assert drawn(spoilt) != listed(page())


def test_the_drawing_is_described_narrow_and_loads_nothing():
    svg = DRAWING.read_text()
    root = ElementTree.fromstring(svg)
    named = {root.find(f"{{*}}{tag}").get("id") for tag in ("title", "desc")}
    assert set(root.get("aria-labelledby").split()) == named
    width = float(root.get("viewBox").split()[2])
    smallest = min(map(int, re.findall(r"font-size:(\d+)px", svg)))
    assert smallest * 350 / width >= 12  # pixels of a letter on a narrow phone
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")
