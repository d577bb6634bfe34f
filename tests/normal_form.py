"""The one form in which notebooks are stored, whoever executed them and wherever.

    python tests/normal_form.py book/03_gradient_accumulation.ipynb

rewrites the notebooks that are not in it, names them, and exits with 1 if there were any.
"""

import copy
import hashlib
import itertools
import re
import sys
from pathlib import Path

from nbformat import NotebookNode
from notebook_cells import read, write

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {
        "codemirror_mode": {"name": "ipython", "version": 3},
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "nbconvert_exporter": "python",
        "pygments_lexer": "ipython3",
    },
}
CELL_METADATA = ("mystnb", "tags")
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
PATH = r"(?<![^\s'\"(<>])[^\s'\"(<>]*"  # from its start only: outputs have very long words
REPLACEMENTS = [
    (re.compile(r"\x1b\[[0-9;]*m"), ""),
    (re.compile(r"\r+\n"), "\n"),
    (re.compile(r"^[^\n]*\r", re.M), ""),  # as a terminal shows it: written over by what follows
    (re.compile(r"^Overwriting (?=\S+$)", re.M), "Writing "),
    (re.compile(PATH + r"/ipykernel_\d+/\d+\.py"), "cell.py"),
    (re.compile(r"(?<=\()\d{5,}\.py(?=, line)"), "cell.py"),  # a SyntaxError's place
    (re.compile(PATH + r"/site-packages/"), "site-packages/"),
    (re.compile(PATH + r"/lib/python3\.\d+/"), "python3/"),
    (re.compile(PATH + r"/(?=(?:book|helpers)/[\w/.]+\.py)"), ""),
]


def normal_form(notebook: NotebookNode) -> NotebookNode:
    """A copy of the notebook without what changes from run to run or from machine to machine."""
    result = copy.deepcopy(notebook)
    result.nbformat, result.nbformat_minor = 4, 5
    result.metadata = NotebookNode(copy.deepcopy(METADATA))
    counts, ids = itertools.count(1), set()
    for cell in result.cells:
        cell.id = _cell_id(cell, ids)
        kept = {key: cell.metadata[key] for key in CELL_METADATA if cell.metadata.get(key)}
        cell.metadata = NotebookNode(kept | _folded_in_jupyterlab(cell))
        cell.pop("attachments", None)
        if cell.cell_type == "code":
            number = next(counts) if cell.execution_count is not None else None
            cell.execution_count = number
            cell.outputs = _normal_outputs(cell.outputs, number)
    return result


def _folded_in_jupyterlab(cell: NotebookNode) -> dict:
    """Solutions and hidden inputs are folded away in JupyterLab too, which knows no dropdown."""
    tags = set(cell.metadata.get("tags", ()))
    hidden = {"source_hidden": True} if tags & {"solution", "hide-input"} else {}
    hidden |= {"outputs_hidden": True} if "solution" in tags else {}
    return {"jupyter": hidden} if hidden else {}


def _cell_id(cell: NotebookNode, taken: set[str]) -> str:
    """A name made of the cell's source, so that an edit elsewhere leaves it alone."""
    digest = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:12]
    names = itertools.chain([digest], (f"{digest}-{n}" for n in itertools.count(2)))
    name = next(name for name in names if name not in taken)
    taken.add(name)
    return name


def _normal_outputs(outputs: list[NotebookNode], number: int | None) -> list[NotebookNode]:
    result = []
    for kind, group in itertools.groupby(outputs, key=lambda output: output.output_type):
        together = list(group)
        result += _merged(together) if kind == "stream" else map(_normal_output, together)
    for output in result:
        if output.output_type == "execute_result":
            output.execution_count = number
    return result


def _merged(streams: list[NotebookNode]) -> list[NotebookNode]:
    """One stream a name: how the two interleave is an accident of timing."""
    result = []
    for name in ("stdout", "stderr"):
        text = normal_text("".join(stream.text for stream in streams if stream.name == name))
        if text:
            result.append(NotebookNode(output_type="stream", name=name, text=text))
    return result


def _normal_output(output: NotebookNode) -> NotebookNode:
    if output.output_type == "error":
        output.evalue = normal_text(output.evalue)
        output.traceback = [normal_text(line) for line in output.traceback]
        return output
    output.pop("transient", None)
    output.data.pop(WIDGET_VIEW, None)  # names a model that only the kernel of that run had
    output.metadata.pop(WIDGET_VIEW, None)
    for mime, value in output.data.items():
        if mime.startswith("text/") and isinstance(value, str):
            output.data[mime] = normal_text(value)
    return output


def normal_text(text: str) -> str:
    for pattern, replacement in REPLACEMENTS:
        text = pattern.sub(replacement, text)
    return text


def main(paths: list[Path]) -> int:
    changed = []
    for path in paths:
        notebook = read(path)
        normal = normal_form(notebook)
        if normal != notebook:
            write(normal, path)
            changed.append(path)
    for path in changed:
        print(f"{path}: stored in the normal form")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main([Path(name) for name in sys.argv[1:]]))
