"""What a chapter keeps to besides notebook_rules.py: its size, its parts, its exercises."""

import json
import re

from nbformat import NotebookNode
from notebook_cells import code_cells, script_cells, tagged, tags
from notebook_rules import Findings, Rule, asserts, label, output_text

MAX_CELLS, MIN_CELLS = 45, 25
MAX_LINES, MAX_SCRIPT_LINES, MAX_WIDTH = 15, 40, 75
MAX_NOTEBOOK_BYTES = 1_500_000


def prose(notebook: NotebookNode) -> str:
    return "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")


def size(notebook: NotebookNode) -> Findings:
    count = len(notebook.cells)
    if not MIN_CELLS <= count <= MAX_CELLS:
        yield f"{count} cells, expected {MIN_CELLS} to {MAX_CELLS}"
    stored = len(json.dumps(notebook, ensure_ascii=False).encode())
    if stored > MAX_NOTEBOOK_BYTES:
        yield f"{stored} bytes, expected at most {MAX_NOTEBOOK_BYTES}"


def cell_size(notebook: NotebookNode) -> Findings:
    written = script_cells(notebook)
    for cell in code_cells(notebook):
        lines = cell.source.strip("\n").splitlines()
        limit = MAX_SCRIPT_LINES + 1 if cell in written else MAX_LINES
        if len(lines) > limit:
            yield f"{label(notebook, cell)}: {len(lines)} lines, expected at most {limit}"
        for line in lines:
            if len(line) > MAX_WIDTH:
                yield f"{label(notebook, cell)}: {len(line)} characters in: {line}"


def text_between(notebook: NotebookNode) -> Findings:
    """Text says why the next cell exists; the assertion of a measurement may follow at once."""
    for before, cell in zip(notebook.cells, notebook.cells[1:], strict=False):
        if before.cell_type == cell.cell_type == "code":
            checked = "nbval-ignore-output" in tags(before) and asserts(cell)
            if not checked:
                yield f"{label(notebook, cell)}: no text before it"


def anatomy(notebook: NotebookNode) -> Findings:
    """Title, table of needs, first code cell, exploration, takeaway."""
    text = prose(notebook)
    head = text[:1500]
    if not head.startswith("# ") or len(re.findall(r"^# ", text, re.M)) != 1:
        yield "the first cell must start with the one # Title"
    if "|" not in head or not re.search(r"\bCPU\b", head) or "minutes" not in head:
        yield "no table of what the chapter needs (chapters, minutes, seconds, CPU or GPU)"
    if script_cells(notebook) and "_run" not in code_cells(notebook)[0].source:
        yield "the first code cell must create _run/"
    shown = [output_text(output) for cell in code_cells(notebook) for output in cell.outputs]
    if not any(re.search(r'class=\\*"explore\\*"', text) for text in shown):
        yield "no exploration"
    if not re.search(r"\{admonition\} Takeaway\s*\n:class: takeaway", text):
        yield "no takeaway"


def exercises(notebook: NotebookNode) -> Findings:
    """Three to six, each with minutes, label and solution; a stub refuses, a solution passes."""
    text = prose(notebook)
    titles = re.findall(r"^:{3,}\{exercise\}(.*)$", text, re.M)
    labels = re.findall(r"^:{3,}\{exercise\}.*\n(?::\w+:.*\n)*?:label: (\S+)", text, re.M)
    solved = re.findall(r"^:{3,}\{solution(?:-start)?\} (\S+)", text, re.M)
    if not 3 <= len(titles) <= 6:
        yield f"{len(titles)} exercises, expected 3 to 6"
    if sorted(labels) != sorted(solved) or len(labels) != len(titles):
        yield f"exercises {labels} and solutions {solved} do not match"
    yield from (f"exercise without minutes: {t}" for t in titles if "minute" not in t)
    for tag, said in (("stub", "not written yet"), ("solution", "passed")):
        for cell in tagged(notebook, tag):
            shown = "".join(map(output_text, cell.outputs))
            if "exercises.check(" not in cell.source or said not in shown:
                yield f"{label(notebook, cell)}: a {tag} whose check does not say {said!r}"


RULES: list[Rule] = [size, cell_size, text_between, anatomy, exercises]
