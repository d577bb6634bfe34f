"""All that `make test` proves, in stages; says at the end how long each took, and which failed.

python tests/run_all.py            all stages
python tests/run_all.py notebooks  this one
"""

import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

from notebook_cells import chapters

from helpers.kernels import has_triton

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
NBVAL_REPORTS = ROOT / "_build" / "nbval"
#: No time in these is held against a prediction, so two of them may run at once. (Rooms, too.)
UNTIMED = ("01", "02", "03", "04", "05", "06", "09", "11", "13", "ro")
#: They compile or interpret kernels.
NEED_TRITON = ("09",)
OWN_CODE = ("helpers", "tests", "book/_extensions")


def tool(name: str, *arguments: str) -> bool:
    """Run a command of the virtual environment at the top of the book; whether it succeeded."""
    sys.stdout.flush()
    return subprocess.run([BIN / name, *arguments], cwd=ROOT, env=_environment()).returncode == 0


def _environment() -> dict[str, str]:
    """The book is tested as it is built without a configured repository.

    And what Python has compiled is kept: hundreds of ranks import the same helpers.
    """
    unset = ("BOOK_REPOSITORY", "PYTHONDONTWRITEBYTECODE")
    return {name: value for name, value in os.environ.items() if name not in unset}


def style() -> bool:
    checks = [
        tool("ruff", "check", "."),
        tool("ruff", "format", "--check", *OWN_CODE),  # notebooks keep their authors' line breaks
        tool("codespell"),
    ]
    return all(checks)


def book() -> bool:
    return tool("jupyter-book", "build", ".", "-n", "-W", "--keep-going", "--all")


def tests() -> bool:
    # Two workers: much of a test is waiting for ranks, kernels or a browser.
    return tool("pytest", "tests", "--durations=10", "-n", "2", "--dist", "worksteal")


def notebooks() -> bool:
    shutil.rmtree(NBVAL_REPORTS, ignore_errors=True)
    runnable = [path for path in chapters() if path.name[:2] not in NEED_TRITON or has_triton()]
    untimed = [path for path in runnable if path.name[:2] in UNTIMED]
    timed = [path for path in runnable if path not in untimed]
    are_green = [
        len(runnable) == len(chapters()) or _may_leave_out(),
        nbval(untimed, "untimed", "-n", "2", "--dist", "loadfile"),
        nbval(timed, "timed"),
    ]
    return all(are_green)


def _may_leave_out() -> bool:
    print(f"NO TRITON: chapters {', '.join(NEED_TRITON)} are left out; `make triton` installs it")
    return not os.environ.get("REQUIRE_TRITON")


def nbval(paths: list[Path], name: str, *options: str) -> bool:
    """Validate notebooks, and leave nbval's report under this name; whether all cells passed."""
    return tool(
        "pytest",
        "--quiet",
        _comparison(),
        *map(str, paths),
        "--nbval-sanitize-with=tests/nbval_sanitize.cfg",
        "--nbval-cell-timeout=120",
        f"--junitxml={NBVAL_REPORTS / name}.xml",
        *options,
    )


def _comparison() -> str:
    """The stored outputs come from a CPU machine; on one with GPUs only the assertions count."""
    import torch

    return "--nbval-lax" if torch.cuda.device_count() else "--nbval"


def notebook_seconds(reports: Path) -> dict[str, float]:
    """Seconds that each notebook took, kernel start included, from a folder of nbval's reports."""
    seconds: dict[str, float] = defaultdict(float)
    for report in reports.glob("*.xml"):
        for case in ElementTree.parse(report).iter("testcase"):
            seconds[case.get("classname", "").removesuffix(".ipynb").split(".")[-1]] += float(
                case.get("time", 0)
            )
    return dict(seconds)


def tree() -> str:
    """What git sees changed; nothing where there is no git."""
    status = ["git", "status", "--porcelain"]
    try:
        return subprocess.run(status, cwd=ROOT, capture_output=True, text=True).stdout
    except FileNotFoundError:
        return ""


def run(stages: list[tuple[str, Callable[[], bool]]]) -> int:
    """Run every stage, also after one that failed; 1 if any failed."""
    before = tree()
    rows, failed = [], []
    for name, stage in stages:
        print(f"\n=== {name} ===", flush=True)
        begin = time.perf_counter()
        if not stage():
            failed.append(name)
        rows.append((name, time.perf_counter() - begin))
    if tree() != before:
        failed.append("clean tree (git status changed while the tests ran)")
    summary(rows, failed)
    return 1 if failed else 0


def summary(rows: list[tuple[str, float]], failed: list[str]) -> None:
    print("\n=== seconds ===")
    for name, seconds in rows:
        print(f"{name:<40} {seconds:7.1f}")
        if name == "notebooks":
            for notebook, part in sorted(notebook_seconds(NBVAL_REPORTS).items()):
                print(f"  {notebook:<38} {part:7.1f}")
    print(f"{'in all':<40} {sum(seconds for _, seconds in rows):7.1f}")
    print(f"FAILED: {', '.join(failed)}" if failed else "Everything passed.")


STAGES = {"style": style, "book": book, "tests": tests, "notebooks": notebooks}


def chosen(names: list[str]) -> list[tuple[str, Callable[[], bool]]]:
    """The stages of these names, or all; raises SystemExit for a name of none."""
    if unknown := [name for name in names if name not in STAGES]:
        sys.exit(f"found {', '.join(unknown)}, expected some of {', '.join(STAGES)}")
    return [(name, stage) for name, stage in STAGES.items() if name in (names or STAGES)]


if __name__ == "__main__":
    sys.exit(run(chosen(sys.argv[1:])))
