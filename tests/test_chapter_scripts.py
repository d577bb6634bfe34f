"""Every script of the book, taken from its cell, runs on the ranks that its docstring names.

"Counts ranks.

torchrun --nproc-per-node 2 _run/01_count.py
ranks: 1 2 4
fails: RuntimeError"        (where it is meant to: the first failing rank's exception)
"""

import ast
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import notebook_cells as cells
import pytest
import yaml

SCRIPT_WIDTH = 75
#: What the docstring of a script says that runs on several ranks, to its end.
FOR_SEVERAL = re.compile(r"^ranks: (1 )?[2-9].*\n(?!fails)", re.M)
BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Script:
    """A script of the book and what its docstring says of it."""

    name: str
    text: str
    arguments: tuple[str, ...]
    ranks: tuple[int, ...]
    fails: str | None


def parse(name: str, text: str) -> Script:
    """ValueError: the docstring lacks the launch line or the ranks."""
    about = ast.get_docstring(ast.parse(text)) or ""
    launch = re.search(rf"torchrun .*\b{re.escape(name)}(?P<arguments>.*)", about)
    ranks = re.search(r"^ranks: (\d+(?: \d+)*)$", about, re.M)
    fails = re.search(r"^fails: (\w+)$", about, re.M)
    if not (launch and ranks):
        raise ValueError(
            f"{name}: found {about!r}, expected lines 'torchrun ... {name}', 'ranks: 1 2'"
        )
    return Script(
        name,
        text,
        tuple(shlex.split(launch["arguments"])),
        tuple(map(int, ranks[1].split())),
        fails and fails[1],
    )


def book_scripts() -> list[tuple[str, str]]:
    return [script for path in cells.chapters() for script in cells.scripts(cells.read(path))]


def world_sizes() -> list[tuple[str, str, int]]:
    """Every script once a world size; a script whose docstring is unreadable, once."""
    found = []
    for name, text in book_scripts():
        try:
            found += [(name, text, ranks) for ranks in parse(name, text).ranks]
        except (ValueError, SyntaxError):
            found.append((name, text, 0))
    return found


def one_script_a_part() -> list[tuple[str, str]]:
    """The first of each part of the book that runs on several ranks and is not meant to fail."""
    contents = yaml.safe_load((cells.ROOT / "_toc.yml").read_text())
    files = [[chapter["file"] for chapter in part["chapters"]] for part in contents["parts"]]
    found = []
    for part in files:
        notebooks = [path for path in cells.chapters() if f"book/{path.stem}" in part]
        of_part = [script for path in notebooks for script in cells.scripts(cells.read(path))]
        found += [script for script in of_part if FOR_SEVERAL.search(script[1])][:1]
    return found


def by_name(value: object) -> str | None:
    return str(value) if not isinstance(value, str) or value.endswith(".py") else ""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_on(script: Script, ranks: int, folder: Path) -> None:
    """Runs the script; AssertionError where it does not do what its docstring says."""
    from helpers.launch import RankFailed, run

    path = folder / script.name
    path.write_text(script.text)
    failure = done = None
    try:
        done = run(str(path), *script.arguments, nproc_per_node=ranks)
    except RankFailed as failed:
        failure = failed
    assert (failure and failure.exception_type) == script.fails, failure or "it did not fail"
    assert failure or done.result is not None or done.output.strip(), f"{script.name} says nothing"


@pytest.mark.parametrize(("name", "text", "ranks"), world_sizes(), ids=by_name)
def test_scripts_run(folder, name, text, ranks):
    run_on(parse(name, text), ranks, folder)


@pytest.mark.parametrize(("name", "text"), one_script_a_part(), ids=by_name)
def test_the_same_under_torchrun(folder, name, text):
    script = parse(name, text)
    (folder / name).write_text(text)
    # On how many does not matter to torchrun, and each of them loads torch for itself.
    ranks = str(min((n for n in script.ranks if n > 1), default=1))
    command = [BIN / "torchrun", "--standalone", "--nproc-per-node", ranks, name]
    done = subprocess.run(
        [*command, *script.arguments], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(("name", "text"), one_script_a_part()[:1], ids=by_name)
def test_the_same_under_python(folder, name, text):
    (folder / name).write_text(text)
    command = [sys.executable, name, *parse(name, text).arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]


def ruff(folder: Path, *words: str) -> str:
    """What ruff says of the scripts in the folder; helpers are ours to it, as in the repository."""
    ours = ["--config", str(cells.ROOT / "pyproject.toml")]
    ours += ["--config", "lint.isort.known-first-party=['helpers']"]
    command = [BIN / "ruff", *words, *ours, "--no-cache", f"--line-length={SCRIPT_WIDTH}", folder]
    done = subprocess.run(command, capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_scripts_are_clean(tmp_path):
    for name, text in book_scripts():
        (tmp_path / name).write_text(text)
    assert ruff(tmp_path, "check") == ""
    assert ruff(tmp_path, "format", "--diff") == ""


SOUND = '''"""Says where it runs.

torchrun --nproc-per-node 2 _run/00_a.py --twice 'a b'
ranks: 1 2
"""

from helpers import launch

launch.report(ok=True)
'''
FAILING = SOUND.replace("ranks: 1 2", "ranks: 2\nfails: ValueError") + "raise ValueError\n"


def test_the_docstring_says_how_to_run():
    assert parse("00_a.py", SOUND) == Script("00_a.py", SOUND, ("--twice", "a b"), (1, 2), None)
    assert parse("00_a.py", FAILING).fails == "ValueError"
    for missing in ("torchrun", "ranks:"):
        with pytest.raises(ValueError, match="expected lines"):
            parse("00_a.py", SOUND.replace(missing, ""))


def test_a_script_that_does_what_it_says_passes(folder):
    run_on(parse("00_a.py", SOUND), 1, folder)
    run_on(parse("00_a.py", FAILING), 2, folder)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (SOUND + "raise ValueError\n", "ValueError"),
        (FAILING.replace("raise ValueError", ""), "did not fail"),
        (FAILING.replace("raise ValueError", "raise KeyError"), "KeyError"),
        (SOUND.replace("launch.report(ok=True)", ""), "says nothing"),
    ],
)
def test_a_script_that_does_something_else_is_found(folder, text, what):
    with pytest.raises(AssertionError, match=what):
        run_on(parse("00_a.py", text), 2, folder)


def test_an_unclean_script_is_found(tmp_path):
    path = tmp_path / "00_a.py"
    path.write_text(SOUND)
    assert ruff(tmp_path, "check") + ruff(tmp_path, "format", "--diff") == ""
    path.write_text(SOUND + "import os\n")
    assert "F401" in ruff(tmp_path, "check")
    path.write_text(SOUND + "x = {'a':1}\n")
    assert "format" in ruff(tmp_path, "format", "--diff")
