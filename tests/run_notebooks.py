"""Execute the book's notebooks and store them in their normal form.

    python tests/run_notebooks.py --chapter 03

A notebook whose cell fails stays as it was, and the command exits with 1.
"""

import argparse
import sys
import time
from pathlib import Path

from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from normal_form import normal_form
from notebook_cells import BOOK, chapter, chapters, read, write

CELL_TIMEOUT_S = 300


def execute(path: Path) -> NotebookNode:
    """The notebook with the outputs of a fresh kernel that runs in the notebook's folder."""
    notebook = read(path)
    started = [0]
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        extra_arguments=["--log-level=ERROR"],
        timeout=CELL_TIMEOUT_S,
        store_widget_state=False,
        record_timing=False,
        on_cell_execute=lambda cell, cell_index: started.append(cell_index),
        resources={"metadata": {"path": str(path.parent)}},
    )
    try:
        return client.execute()
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        raise FailedCell(path, started[-1], notebook, error) from error


class FailedCell(Exception):
    """Says which notebook, which cell and what error."""

    def __init__(self, path: Path, index: int, notebook: NotebookNode, error: Exception):
        first_line = notebook.cells[index].source.strip().splitlines()[0]
        super().__init__(f"{path.name}: cell {index} ({first_line}): {_one_line(error)}")
        self.details = str(error)


def _one_line(error: Exception) -> str:
    if isinstance(error, CellExecutionError):
        return f"{error.ename}: {error.evalue}".splitlines()[0]
    return f"{type(error).__name__}: {error}".splitlines()[0]


def run(paths: list[Path]) -> int:
    """Execute and store each notebook, with a line each; the number of those that failed."""
    failed = 0
    for path in paths:
        begin = time.perf_counter()
        try:
            write(normal_form(execute(path)), path)
            outcome = "stored"
        except FailedCell as error:
            failed += 1
            outcome = f"FAILED, left as it was\n{error.details}\n{error}"
        print(f"{path.stem:<40} {time.perf_counter() - begin:6.1f} s  {outcome}", flush=True)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chapter", help="its number, such as 03; all chapters when left out")
    chosen = parser.parse_args().chapter
    try:
        paths = [chapter(chosen)] if chosen else chapters(BOOK)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return 1 if run(paths) else 0


if __name__ == "__main__":
    sys.exit(main())
