"""What every notebook of the book keeps to; a rule yields what it finds wrong, in one line each."""

import ast
import json
import re
from collections.abc import Callable, Iterator

from nbformat import NotebookNode
from notebook_cells import code_cells, tags

Findings = Iterator[str]
Rule = Callable[[NotebookNode], Findings]
IPYTHON_LINE = re.compile(r"^(\s*)(%|!|[\w, ]+=\s*[%!]).*$", re.M)
ABSOLUTE_PATH = re.compile(
    r"(?<![\w./:~-])(?:/(?:home|root|Users|tmp|work|usr|opt|var|mnt|workspace)/\w|[A-Z]:\\\w|~/\w)"
)


def label(notebook: NotebookNode, cell: NotebookNode) -> str:
    first_line = (cell.source.strip().splitlines() or ["empty"])[0]
    return f"cell {notebook.cells.index(cell)} ({first_line[:50]})"


def python(source: str) -> ast.Module:
    """The cell as Python, with IPython's own lines as `pass`."""
    if source.lstrip().startswith("%%"):
        return ast.parse("")
    return ast.parse(IPYTHON_LINE.sub(r"\1pass", source))


def output_text(output: NotebookNode) -> str:
    """All that an output shows as text; pictures apart."""
    if output.output_type == "stream":
        return output.text
    if output.output_type == "error":
        return "\n".join([output.evalue, *output.traceback])
    shown = {mime: data for mime, data in output.data.items() if not mime.startswith("image/")}
    return json.dumps(shown, ensure_ascii=False)


def executed(notebook: NotebookNode) -> Findings:
    for cell in code_cells(notebook):
        if cell.execution_count is None:
            yield f"{label(notebook, cell)}: stored unrun"


def measurements_asserted(notebook: NotebookNode) -> Findings:
    """A measurement is not compared, so what the text says of it must be asserted after it."""
    waiting = None
    for cell in code_cells(notebook):
        measures = "nbval-ignore-output" in tags(cell)
        if waiting and measures:
            yield f"{label(notebook, waiting)}: no assertion before the next measurement"
        elif waiting and asserts(cell):
            waiting = None
        if measures:
            waiting = cell
    if waiting:
        yield f"{label(notebook, waiting)}: no assertion after it"


def asserts(cell: NotebookNode) -> bool:
    """Whether the cell asserts something about a name; `assert True` does not count."""
    if "raises-exception" in tags(cell):
        return False
    return any(
        isinstance(node, ast.Assert) and any(isinstance(n, ast.Name) for n in ast.walk(node.test))
        for node in ast.walk(python(cell.source))
    )


def failures_tagged(notebook: NotebookNode) -> Findings:
    """A failure is shown on purpose, in a cell tagged for it, or not at all."""
    for cell in code_cells(notebook):
        allowed = "raises-exception" in tags(cell)
        errors = [output for output in cell.outputs if output.output_type == "error"]
        warned = [output for output in cell.outputs if output.get("name") == "stderr"]
        if (errors or warned) and not allowed:
            yield f"{label(notebook, cell)}: {output_text((errors + warned)[0])[:80]!r}"
        if allowed and not errors:
            yield f"{label(notebook, cell)}: tagged raises-exception, and raises nothing"


def shell_lines(notebook: NotebookNode) -> Findings:
    """A shell line that fails leaves its cell green."""
    for cell in code_cells(notebook):
        for line in cell.source.splitlines():
            if re.match(
                r"\s*(?:[\w, ]+=\s*)?(?:!|%sx\b|%system\b|%%(?:bash|sh|script|sx)\b)", line
            ):
                yield f"{label(notebook, cell)}: shell line: {line.strip()}"


def local_things(notebook: NotebookNode) -> Findings:
    """Nothing of the machine that it was written on, nothing installed on the reader's."""
    for cell in notebook.cells:
        shown = "\n".join(map(output_text, cell.get("outputs", [])))
        for text in (cell.source, shown):
            for found in ABSOLUTE_PATH.finditer(text):
                yield f"{label(notebook, cell)}: path: {text[found.start() :][:60]!r}"
        if cell.cell_type == "code" and re.search(r"\bpip3? install\b|%(pip|conda)\b", cell.source):
            yield f"{label(notebook, cell)}: installs a package"


def stable_outputs(notebook: NotebookNode) -> Findings:
    """What is compared must not name an address or redraw a line."""
    for cell in code_cells(notebook):
        for text in map(output_text, cell.outputs):
            if re.search(r"\b0x[0-9a-f]{6,}", text):
                yield f"{label(notebook, cell)}: an address in the output"
            if "\r" in text:
                yield f"{label(notebook, cell)}: a carriage return in the output"


def images_described(notebook: NotebookNode) -> Findings:
    """A drawn image has an alternative text; a caption and a name make it a figure."""
    for cell in code_cells(notebook):
        if not any(mime.startswith("image/") for o in cell.outputs for mime in o.get("data", ())):
            continue
        about = cell.metadata.get("mystnb", {})
        if not about.get("image", {}).get("alt", "").strip():
            yield f"{label(notebook, cell)}: image without alternative text"
        if not about.get("figure", {}).get("caption", "").strip():
            yield f"{label(notebook, cell)}: figure without caption"
        if not about.get("figure", {}).get("name", "").startswith("fig-"):
            yield f"{label(notebook, cell)}: figure without a name that starts fig-"
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and re.search(
            r"!\[\s*\]\(|\(data:image|<img\b", cell.source
        ):
            yield f"{label(notebook, cell)}: image without text, embedded, or as raw HTML"


def plotting(notebook: NotebookNode) -> Findings:
    for cell in code_cells(notebook):
        if "pyplot" in cell.source or "%matplotlib" in cell.source:
            yield f"{label(notebook, cell)}: pyplot; figures come from helpers.figures"
        if re.search(r";\s*$", cell.source):
            yield f"{label(notebook, cell)}: ends in a semicolon"


RULES: list[Rule] = [
    executed, measurements_asserted, failures_tagged, shell_lines, local_things, stable_outputs,
    images_described, plotting,
]  # fmt: skip
