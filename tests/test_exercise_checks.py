"""The exercises' checks: what they say, and that they reject each plausible wrong solution."""

import functools
import importlib.util
import math
from pathlib import Path

import notebook_cells
import pytest
import torch

from helpers import exercises
from helpers.exercises import checking
from helpers.exercises.checking import Wrong, exercise, expect_close, registered

#: A check's own worlds, that first in which most wrong solutions show.
WHERE_MUTANTS_FAIL = (2, 1, 4)
MUTANTS = sorted((Path(__file__).parent / "exercise_mutants").glob("chapter_*.py"))


@pytest.fixture
def toy(monkeypatch):
    """A registered exercise: return 2.0."""
    monkeypatch.setattr(checking, "_REGISTERED", dict(checking._REGISTERED))

    @exercise("00-two")
    def two(solution):
        expect_close(solution(), 2.0, "the answer")

    return two


def unwritten():
    raise NotImplementedError


def divides_by_zero():
    zero = 0
    return 1 / zero


def not_yet_a_number():
    return helper_that_divides(0)


def helper_that_divides(zero):
    return sum(1 / x for x in [zero])


def softmax_of_integers():
    return torch.arange(3).softmax(0)  # torch's own NotImplementedError, raised in C++


class Misspelt(torch.nn.Module):
    def forwrd(self, x):
        return x


class Unwritten:
    def __call__(self):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("solution", "line"),
    [
        (lambda: 2.0, "00-two: passed"),
        (unwritten, "00-two: not written yet"),
        (functools.partial(unwritten), "00-two: not written yet"),
        (Unwritten(), "00-two: not written yet"),
        (lambda: None, "00-two: wrong: the answer is NoneType, expected numbers or a tensor"),
        (
            not_yet_a_number,
            "00-two: wrong: ZeroDivisionError: division by zero (line 2 of helper_that_divides)",
        ),
        (lambda: 2.5, "00-two: wrong: the answer is 2.5e-01 off, allowed 1e-12: 2.5, expected 2"),
        (
            lambda: float("nan"),
            "00-two: wrong: the answer is nan off, allowed 1e-12: nan, expected 2",
        ),
        (
            divides_by_zero,
            "00-two: wrong: ZeroDivisionError: division by zero (line 3 of divides_by_zero)",
        ),
    ],
)
def test_a_check_says_one_line(toy, capsys, solution, line):
    assert bool(exercises.check("00-two", solution)) is line.endswith("passed")
    assert capsys.readouterr().out == line + "\n"


@pytest.mark.parametrize("solution", [softmax_of_integers, torch.nn.Linear(2, 2), Misspelt()])
def test_what_torch_does_not_implement_is_a_mistake_not_a_stub(monkeypatch, capsys, solution):
    monkeypatch.setattr(checking, "_REGISTERED", dict(checking._REGISTERED))
    exercise("00-torch")(
        lambda solution: (
            solution() if solution is softmax_of_integers else solution(torch.ones(1, 2).long())
        )
    )
    assert not exercises.check("00-torch", solution)
    said = capsys.readouterr().out
    assert said.startswith("00-torch: wrong: ")
    assert len(said.splitlines()) == 1


def test_unknown_names_and_uncallable_solutions_are_refused(toy):
    with pytest.raises(ValueError, match="found '00-three', expected one of: 00-two"):
        exercises.check("00-three", unwritten)
    with pytest.raises(ValueError, match="none in this chapter"):
        exercises.check("99-none", unwritten)
    with pytest.raises(TypeError, match="found float, expected the function itself"):
        exercises.check("00-two", 2.0)
    with pytest.raises(ValueError, match="expected a form like"):
        exercise("window")


def test_expect_close_is_relative_and_names_shapes():
    expect_close(torch.full((3,), 1e6), torch.full((3,), 1e6), "it")
    expect_close([0.0, 0.0], [0.0, 0.0], "it")
    with pytest.raises(Wrong, match=r"it is 1\.0e-06 off"):
        expect_close([1e6 + 1.0], [1e6], "it")
    with pytest.raises(Wrong, match=r"shape \(2,\), expected \(1,\)"):
        expect_close([1.0, 2.0], [1.0], "it")


def test_expect_close_is_as_exact_as_float64_and_sees_complex_numbers():
    third = torch.tensor(1, dtype=torch.float64) / 3
    expect_close(third, 1 / 3, "it")
    expect_close([third, 1j], torch.tensor([1 / 3, 1j], dtype=torch.complex128), "it")
    with pytest.raises(Wrong, match=r"it is 2.0e-09 off, .*: 0.500000001, expected 0.5$"):
        expect_close(0.5 + 1e-9, 0.5, "it")
    with pytest.raises(Wrong, match=r"it is 2.2e.00 off, .*: 4.9j, expected 4$"):
        expect_close(4 + 9j, 4, "it")
    with pytest.raises(Wrong, match="it is nan off"):
        expect_close(complex(1, math.nan), 1, "it")


def answers_its_rank_wrongly():
    import os

    return 2.0 if os.environ["RANK"] == "0" else 3.0


def test_ranks_run_the_check_and_the_wrong_one_is_named(monkeypatch, capsys):
    pytest.importorskip("helpers.launch")
    monkeypatch.setattr(checking, "_REGISTERED", dict(checking._REGISTERED))
    exercise("00-ranks", ranks=True)(_expect_two)
    assert exercises.check("00-ranks", lambda: 2.0, nproc_per_node=(2,))
    assert not exercises.check("00-ranks", unwritten, nproc_per_node=(2,))
    assert not exercises.check("00-ranks", answers_its_rank_wrongly, nproc_per_node=(2,))
    assert not exercises.check("00-ranks", softmax_of_integers, nproc_per_node=(1,))
    passed, stub, wrong, torch_s = capsys.readouterr().out.splitlines()
    assert torch_s.startswith("00-ranks: wrong: rank 0 of 1: NotImplementedError: ")
    assert passed == "00-ranks: passed"
    assert stub == "00-ranks: not written yet"
    assert wrong.startswith("00-ranks: wrong: rank 1 of 2: the answer is 5.0e-01 off")


def _expect_two(solution):
    expect_close(solution(), 2.0, "the answer")


def load(path: Path) -> dict:
    spec = importlib.util.spec_from_file_location(f"mutants_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MUTANTS


@pytest.mark.parametrize(
    ("name", "mutant"),
    [
        pytest.param(name, mutant, id=f"{name}-{mutant.__name__}")
        for path in MUTANTS
        for name, mutants in load(path).items()
        for mutant in mutants
    ],
)
def test_every_plausible_wrong_solution_is_rejected(name, mutant, capsys):
    assert not exercises.check(name, mutant, nproc_per_node=WHERE_MUTANTS_FAIL)
    said = capsys.readouterr().out
    assert said.startswith(f"{name}: wrong: ")
    assert len(said.splitlines()) == 1


def chapters_with_checks() -> list[str]:
    folder = Path(exercises.__file__).parent
    return sorted(path.stem[-2:] for path in folder.glob("chapter_*.py"))


@pytest.mark.parametrize("chapter", chapters_with_checks())
def test_every_exercise_has_wrong_solutions(chapter):
    path = Path(__file__).parent / "exercise_mutants" / f"chapter_{chapter}.py"
    mutants = load(path)
    assert set(mutants) == set(registered(chapter))
    assert all(mutants.values())


VERDICTS = {"stub": "not written yet", "solution": "passed"}


def told(cell) -> list[str]:
    """The lines that a cell's stored output shows."""
    return "".join(output.get("text", "") for output in cell.outputs).splitlines()


@pytest.mark.parametrize("chapter", chapters_with_checks())
def test_the_solutions_of_the_chapter_pass_and_its_stubs_do_not(chapter):
    """As stored: nbval runs these cells again, on 1, 2 and 4 ranks, and compares what they say."""
    try:
        notebook = notebook_cells.read(notebook_cells.chapter(chapter))
    except ValueError:
        pytest.skip(f"chapter {chapter} is not written yet")
    for tag, verdict in VERDICTS.items():
        cells = notebook_cells.tagged(notebook, tag)
        assert [line for cell in cells for line in told(cell)] == [
            f"{name}: {verdict}" for name in sorted(registered(chapter), key=places(cells))
        ]
        assert not any("nbval-ignore-output" in notebook_cells.tags(cell) for cell in cells)


def places(cells):
    """Where in these cells an exercise is checked."""
    source = "".join(cell.source for cell in cells)
    return lambda name: source.find(f'exercises.check("{name}"')


@pytest.mark.skipif(not torch.cuda.device_count(), reason="nbval compares what these cells say")
@pytest.mark.parametrize("chapter", chapters_with_checks())
def test_where_nbval_compares_no_outputs_the_cells_run_here(chapter, capsys):
    path = notebook_cells.chapter(chapter)
    for tag, verdict in VERDICTS.items():
        cells = notebook_cells.tagged(notebook_cells.read(path), tag)
        capsys.readouterr()
        notebook_cells.namespace(path, *cells)
        said = capsys.readouterr().out.splitlines()
        verdicts = [line for line in said if line[:3] == f"{chapter}-"]
        assert len(verdicts) == len(cells)
        assert all(line.endswith(verdict) for line in verdicts), verdicts


def test_a_cell_that_ends_in_a_check_shows_its_line_only(toy):
    from IPython.core.formatters import DisplayFormatter

    assert DisplayFormatter().format(exercises.check("00-two", unwritten)) == ({}, {})
