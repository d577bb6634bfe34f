"""What the book will run on this machine, and about how long it takes."""

import json
from dataclasses import dataclass
from pathlib import Path

from .row import WARN, Row

TOPIC = "the book, here"
FOLDER = Path(__file__).resolve().parents[2] / "book"
#: A warm launch of two ranks (gloo) on the two slow cores for which chapters state their seconds.
REFERENCE_LAUNCH_S = 0.22
#: Emulated links and compute that sleeps take their time on the fastest machine.
LEAST_FACTOR = 0.5
#: Words of a chapter that starts ranks.
_LAUNCHES = "%torchrun", "run_function(", "process_group("
#: Of `make test` on those two cores.
TEST_S = 900.0


@dataclass(frozen=True)
class Chapter:
    """What a chapter says of itself: seconds on two slow cores, and what it runs on."""

    title: str
    seconds: float
    runs_on: str
    has_ranks: bool


def read(folder: Path = FOLDER) -> list[Chapter]:
    """The chapters, in order; those that do not say how long they run are left out. Local."""
    found = (_chapter(path) for path in sorted(folder.glob("[0-9][0-9]_*.ipynb")))
    return [chapter for chapter in found if chapter]


def _chapter(path: Path) -> Chapter | None:
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        texts = ["".join(cell["source"]) for cell in notebook["cells"]]
        title = texts[0].splitlines()[0].lstrip("# ").replace("&#8203;", "")
        seconds, runs_on = _last_cells(texts[0])
        has_ranks = any(word in text for text in texts for word in _LAUNCHES)
        return Chapter(f"{path.name[:2]} {title}", float(seconds), runs_on, has_ranks)
    except (OSError, ValueError, KeyError, IndexError):
        return None


def _last_cells(text: str) -> list[str]:
    """The last two cells of the table `needs | minutes to read | seconds to run | runs on`."""
    lines = iter(text.splitlines())
    next(line for line in lines if line.startswith("|") and "seconds to run" in line)
    next(lines)
    return [cell.strip() for cell in next(lines).strip().strip("|").split("|")[-2:]]


def rows(chapters: list[Chapter], num_gpus: int, launch_s: float | None) -> list[Row]:
    """A row for each chapter and one for all. `launch_s`: of a warm launch here, or None. Local."""
    if not chapters:
        return [Row(TOPIC, "chapters", "not found", WARN, ("no_book",))]
    factor = slowness(launch_s)
    each = [
        Row(TOPIC, c.title, f"{backends(c, num_gpus)}; {about(factor * c.seconds)}")
        for c in chapters
    ]
    total = (
        f"{about(factor * sum(c.seconds for c in chapters))}; make test {about(factor * TEST_S)}"
    )
    basis = "as on two slow cores" if launch_s is None else f"{factor:.1f} x that of two slow cores"
    return [*each, Row(TOPIC, "all chapters", f"{total} ({basis})")]


def slowness(launch_s: float | None) -> float:
    """Seconds here over the stated ones, from a warm launch; 1 where there was none. Local."""
    return 1.0 if launch_s is None else max(LEAST_FACTOR, launch_s / REFERENCE_LAUNCH_S)


def backends(chapter: Chapter, num_gpus: int) -> str:
    """What carries a chapter's collectives here, in words. Local."""
    if not chapter.has_ranks:
        return "one process, CPU"
    uses_gpus = "GPUs with no cell changed" in chapter.runs_on or "GPUs too" in chapter.runs_on
    if not num_gpus or not uses_gpus:
        return "gloo on the CPU"
    if num_gpus == 1:
        return "a world of one with nccl on the GPU, more ranks with gloo on the CPU"
    return f"nccl up to {num_gpus} ranks, gloo on the CPU above"


def about(seconds: float) -> str:
    """Seconds in words, to a figure or two. Local."""
    if seconds < 90:
        return f"about {max(5, 5 * round(seconds / 5))} s"
    return f"about {round(seconds / 60)} min"
