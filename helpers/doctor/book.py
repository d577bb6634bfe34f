"""What the book will run here, and about how long it takes."""

import time
from pathlib import Path

import torch

from helpers.doctor.row import NOTE, Row

BOOK = Path(__file__).resolve().parent.parent.parent / "book"
#: Two cores that take this long for `_busy` take so many minutes for `make test`.
REFERENCE_S, REFERENCE_MINUTES = 0.09, 10


def book_rows(num_gpus: int, book: Path = BOOK, seconds: float | None = None) -> list[Row]:
    """Return a row for the chapters, and one for the time they take. Local."""
    chapters = sorted(book.glob("[0-9][0-9]_*.ipynb"))
    if not chapters:
        advice = "run this in the folder of the book, where `make book` works"
        return [Row("chapters", f"none in {book.name}/", NOTE, advice)]
    found = f"{len(chapters)}, all run here; {_backends(num_gpus)}"
    minutes = REFERENCE_MINUTES * (_busy() if seconds is None else seconds) / REFERENCE_S
    rough = max(1, round(minutes))
    return [Row("chapters", found), Row("time", f"`make test`: about {rough} minutes, roughly")]


def _backends(num_gpus: int) -> str:
    if num_gpus == 0:
        return "ranks on the CPU, over gloo"
    if num_gpus == 1:
        return "one rank on the GPU, several on the CPU over gloo"
    return f"up to {num_gpus} ranks on GPUs over NCCL, more on the CPU over gloo"


def _busy() -> float:
    """Seconds of a fixed piece of Python and torch, on one core: how fast this machine is."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    begin = time.process_time()
    total = torch.zeros(256, 256)
    for step in range(20_000):
        total.add_(step % 7)
    torch.set_num_threads(threads)
    return time.process_time() - begin
