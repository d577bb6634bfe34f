"""How a solution is checked: found by its name, run here or on every rank, answered in one line.

`chapter_NN.py` beside this module registers the checks of a chapter:

    @exercise("03-window")                       # runs in this process
    def window(solution): ...                    # raises Wrong("... is 3.2e-01 off ...")

    @exercise("05-average", ranks=True)          # runs on every rank of 1, 2 and 4
    def average(solution): ...                   # opens a process_group() itself
"""

import importlib
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch


class Wrong(Exception):
    """A solution's result is not the expected one; the message says by how much. Local."""


@dataclass(frozen=True)
class Exercise:
    """A registered check: its name, the function that runs it, and whether ranks run it."""

    name: str
    run: Callable[[Callable], None]
    ranks: bool


class Verdict(int):
    """True or False of a check, which a cell's last line need not show: the check has said it."""

    def _ipython_display_(self) -> None:
        pass


_REGISTERED: dict[str, Exercise] = {}


def exercise(name: str, *, ranks: bool = False) -> Callable:
    """Decorator: registers check(solution) under "NN-word", the chapter and a word. Local.

    ranks=True: every rank of each world size runs it. ValueError: a name of another form.
    """
    chapter, _, word = name.partition("-")
    if not (len(chapter) == 2 and chapter.isdigit() and word):
        raise ValueError(f"exercise: found the name {name!r}, expected a form like '03-window'")

    def register(function: Callable) -> Callable:
        _REGISTERED[name] = Exercise(name, function, ranks)
        return function

    return register


def registered(chapter: str) -> dict[str, Exercise]:
    """Every exercise of a chapter ("03") by name, {} if it has no checks. Local."""
    module = f"helpers.exercises.chapter_{chapter}"
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:  # the chapter is there, something it needs is not
            raise
    return {name: each for name, each in _REGISTERED.items() if name[:2] == chapter}


def check(name: str, solution: Callable, nproc_per_node: Sequence[int] = (1, 2, 4)) -> Verdict:
    """True if the solution does what exercise `name` asks; prints one line either way. Local.

    The line says passed, not written yet (the stub's NotImplementedError), or on which rank and
    by how much the result is off. Where ranks run the check, it is repeated on each of
    nproc_per_node processes. ValueError: no such exercise. TypeError: a solution not callable.
    """
    exercises = registered(name[:2])
    if name not in exercises:
        known = ", ".join(sorted(exercises)) or "none in this chapter"
        raise ValueError(f"exercises.check: found {name!r}, expected one of: {known}")
    if not callable(solution):
        raise TypeError(
            f"exercises.check: found {type(solution).__name__}, expected the function itself"
        )
    found = exercises[name]
    fault = _fault_on_ranks(found, solution, nproc_per_node) if found.ranks else None
    fault = fault if found.ranks else _fault(found, solution)
    print(f"{name}: {fault or 'passed'}")
    return Verdict(fault is None)


def _fault(found: Exercise, solution: Callable) -> str | None:
    try:
        found.run(solution)
    except NotImplementedError:
        return "not written yet"
    except Wrong as wrong:
        return f"wrong: {wrong}"
    except Exception as error:
        return f"wrong: {_one_line(type(error).__name__, error)}{_place(error, solution)}"
    return None


def _place(error: Exception, solution: Callable) -> str:
    """The solution's own line, not one of a library that it called."""
    code = getattr(solution, "__code__", None)
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if code and frame.filename == code.co_filename
    ]
    return f" (line {lines[-1] - code.co_firstlineno + 1} of {code.co_name})" if lines else ""


def _fault_on_ranks(found: Exercise, solution: Callable, worlds: Sequence[int]) -> str | None:
    from helpers.launch import RankFailed, run_function

    for world_size in worlds:
        try:
            run_function(found.run, solution, nproc_per_node=world_size)
        except RankFailed as failed:
            if failed.exception_type == "NotImplementedError":
                return "not written yet"
            where = f"rank {failed.rank} of {world_size}"
            if failed.exception_type == "Wrong":
                return f"wrong: {where}: {failed.message}"
            return f"wrong: {where}: {_one_line(failed.exception_type, failed.message)}"
    return None


def _one_line(kind: str, message: object) -> str:
    first = str(message).strip().splitlines()[:1]
    return f"{kind}: {first[0]}" if first else kind


def expect_close(found, expected, what: str, tolerance: float = 1e-12) -> None:
    """Raises Wrong unless two numbers or tensors agree; its message says by how much. Local.

    The difference is the largest over all elements, relative to the largest expected value (to 1
    where all are 0); 1e-12 suits float64 sums of a few thousand terms. A NaN is never close.
    """
    found = torch.as_tensor(found).detach().double()
    expected = torch.as_tensor(expected).detach().double()
    if found.shape != expected.shape:
        raise Wrong(f"{what} has shape {tuple(found.shape)}, expected {tuple(expected.shape)}")
    if not expected.numel():
        return
    scale = expected.abs().max().item() or 1.0
    error = (found - expected).abs().max().item() / scale
    if not error <= tolerance:  # so that a NaN fails
        values = f": {found.item():.6g}, expected {expected.item():.6g}" if found.ndim == 0 else ""
        raise Wrong(f"{what} is {error:.1e} off, allowed {tolerance:.0e}{values}")
