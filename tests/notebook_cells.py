"""The only reader of the book's notebooks: chapters, cells, scripts and definitions."""

import contextlib
import linecache
import os
import re
import tempfile
from pathlib import Path

import nbformat
import yaml
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parent.parent
BOOK = ROOT / "book"
SCRIPT_LINE = re.compile(r"\s*%%writefile\s+(?P<append>-a\s+)?(?P<path>\S+)\s*\n")


def chapters(book: Path = BOOK) -> list[Path]:
    """Every notebook of the book, found by pattern, in the order of its path."""
    hidden = (path for path in book.rglob("*.ipynb") if not _is_scratch(path.relative_to(book)))
    return sorted(hidden)


def texts(book: Path = BOOK) -> list[Path]:
    """Every page of the book that is no notebook, in the order of its path."""
    return sorted(x for x in book.rglob("*.md") if not _is_scratch(x.relative_to(book)))


def _is_scratch(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


def chapter(number: str, book: Path = BOOK) -> Path:
    """The one notebook whose name is `number`, or starts with it, such as "03"."""
    found = [path for path in chapters(book) if f"{path.stem}_".startswith(f"{number}_")]
    if len(found) != 1:
        names = ", ".join(path.stem for path in chapters(book)) or "no notebook"
        raise ValueError(
            f"found {len(found)} chapters {number!r}, expected 1; the book has {names}"
        )
    return found[0]


def read(path: Path) -> NotebookNode:
    """The notebook stored at `path`, in format 4."""
    return nbformat.read(path, as_version=4)


def write(notebook: NotebookNode, path: Path) -> None:
    """Store the notebook at `path`, whole or not at all."""
    text = nbformat.writes(notebook) + "\n"
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def tags(cell: NotebookNode) -> set[str]:
    return set(cell.metadata.get("tags", ()))


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """The code cells that hold any code, in order."""
    return [c for c in notebook.cells if c.cell_type == "code" and c.source.strip()]


def tagged(notebook: NotebookNode, tag: str) -> list[NotebookNode]:
    """The code cells that carry `tag`, in order."""
    return [cell for cell in code_cells(notebook) if tag in tags(cell)]


def script_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in code_cells(notebook) if SCRIPT_LINE.match(cell.source)]


def scripts(notebook: NotebookNode) -> list[tuple[str, str]]:
    """(name, text) of every script that a cell writes, in order."""
    found = []
    for cell in script_cells(notebook):
        line = SCRIPT_LINE.match(cell.source)
        text = cell.source[line.end() :]
        found.append((Path(line["path"]).name, text if text.endswith("\n") else text + "\n"))
    return found


def toc_files(toc: Path = ROOT / "_toc.yml") -> list[str]:
    """Every page that the table of contents names, its root first."""
    contents = yaml.safe_load(toc.read_text(encoding="utf-8"))
    return [contents["root"], *_files(contents)]


def _files(node: object) -> list[str]:
    if isinstance(node, list):
        return [name for item in node for name in _files(item)]
    if not isinstance(node, dict):
        return []
    own = [node["file"]] if "file" in node else []
    return own + [name for value in node.values() for name in _files(value)]


def namespace(path: Path, *extra: NotebookNode) -> dict[str, object]:
    """The names that a chapter's first code cell and its `define` cells define, then `extra` cells.

    Lines that only IPython reads (%load_ext) are left out. The cells run in a temporary folder.
    Functions belong to `__main__`, so that a launcher ships them by value as from a notebook.
    """
    notebook = read(path)
    first = code_cells(notebook)[:1]
    definitions = [cell for cell in tagged(notebook, "define") if cell not in first]
    names: dict[str, object] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for cell in (*first, *definitions, *extra):
            execute(cell, names, f"{path.stem}[{notebook.cells.index(cell)}]")
    return names


def execute(cell: NotebookNode, names: dict[str, object], label: str) -> None:
    """Run a cell's Python lines in `names`; tracebacks and inspect.getsource see it as `label`."""
    lines = ["\n" if re.match(r"\s*[%!]", line) else line for line in cell.source.splitlines(True)]
    linecache.cache[f"<{label}>"] = (sum(map(len, lines)), None, lines, f"<{label}>")
    exec(compile("".join(lines), f"<{label}>", "exec"), names)
