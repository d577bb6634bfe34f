"""How a solution is checked: found by its name, run here or on every rank, answered in one line.

`chapter_NN.py` beside this module registers the checks of a chapter:

    @exercise("03-window")                       # runs in this process
    def window(solution): ...                    # raises Wrong("... is 3.2e-01 off ...")

    @exercise("05-average", ranks=True)          # runs on every rank of 1, 2 and 4
    def average(solution): ...                   # opens a process_group() itself
"""

import dis
import importlib
import inspect
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

    The line says passed, not written yet (a NotImplementedError that the solution's own code
    raises, as stubs do; torch raises it too), or on which rank and by how much the result is off.
    Where ranks run the check, it is repeated on each of nproc_per_node processes.
    ValueError: no such exercise. TypeError: a solution not callable.
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


class NotWritten(Exception):
    """The solution is still a stub. Local."""


def _run(run: Callable[[Callable], None], solution: Callable) -> None:
    """Run a check here; where ranks run it, on a rank. Raises NotWritten for a stub."""
    try:
        run(solution)
    except NotImplementedError as error:
        if _is_own_refusal(error, solution):
            raise NotWritten from None
        raise


def _is_own_refusal(error: NotImplementedError, solution: Callable) -> bool:
    """Whether a `raise` in the solution's file raised it, not torch below a call of it."""
    step = error.__traceback__
    while step.tb_next is not None:
        step = step.tb_next
    code, raises = step.tb_frame.f_code, dis.opmap["RAISE_VARARGS"]
    return code.co_filename == _file(solution) and code.co_code[step.tb_lasti] == raises


def _file(solution: Callable) -> str | None:
    """The file of a function, of a partial's function, of the methods of a class or an object."""
    inner = inspect.unwrap(getattr(solution, "func", solution))
    owner = inner if isinstance(inner, type) else type(inner)
    codes = [getattr(each, "__code__", None) for each in (inner, *vars(owner).values())]
    return next((code.co_filename for code in codes if code), None)


def _fault(found: Exercise, solution: Callable) -> str | None:
    try:
        _run(found.run, solution)
    except NotWritten:
        return "not written yet"
    except Wrong as wrong:
        return f"wrong: {wrong}"
    except Exception as error:
        return f"wrong: {_one_line(type(error).__name__, error)}{_place(error, solution)}"
    return None


def _place(error: Exception, solution: Callable) -> str:
    """The innermost line in the solution's file, counted within its function, helper or not."""
    steps = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [step for step in steps if step[0].co_filename == _file(solution)]
    own = [step for step in own if step[0].co_name[0] != "<"] or own  # <genexpr>: where it stands
    if not own:
        return ""
    code, line = own[-1]
    return f" (line {line - code.co_firstlineno + 1} of {code.co_name})"


def _fault_on_ranks(found: Exercise, solution: Callable, worlds: Sequence[int]) -> str | None:
    from helpers.launch import RankFailed, run_function

    for world_size in worlds:
        try:
            run_function(_run, found.run, solution, nproc_per_node=world_size)
        except RankFailed as failed:
            if failed.exception_type == NotWritten.__name__:
                return "not written yet"
            where = f"rank {failed.rank} of {world_size}"
            kind = "" if failed.exception_type == Wrong.__name__ else failed.exception_type
            return f"wrong: {where}: {_one_line(kind, failed.message)}"
    return None


def _one_line(kind: str, message: object) -> str:
    return ": ".join(filter(None, (kind, *str(message).strip().splitlines()[:1])))


def expect_close(found, expected, what: str, tolerance: float = 1e-12) -> None:
    """Raises Wrong unless two numbers or tensors agree; its message says by how much. Local.

    The difference is the largest over all elements, relative to the largest expected value (to 1
    where all are 0); 1e-12 suits float64 sums of a few thousand terms. A NaN is never close.
    Numbers may be complex; Python's own are compared in float64, not in torch's default dtype.
    """
    found, expected = _wide(found, what), _wide(expected, what)
    if found.shape != expected.shape:
        raise Wrong(f"{what} has shape {tuple(found.shape)}, expected {tuple(expected.shape)}")
    if not expected.numel():
        return
    scale = expected.abs().max().item() or 1.0
    error = (found - expected).abs().max().item() / scale
    if not error <= tolerance:  # so that a NaN fails
        values = "" if found.ndim else ": {}, expected {}".format(*_digits(found, expected))
        raise Wrong(f"{what} is {error:.1e} off, allowed {tolerance:.0e}{values}")


def _wide(value, what: str) -> torch.Tensor:
    """The same numbers in complex128, which holds every float64."""
    try:
        return torch.as_tensor(value, dtype=torch.complex128, device="cpu").detach()
    except (TypeError, ValueError, RuntimeError):
        raise Wrong(f"{what} is {type(value).__name__}, expected numbers or a tensor") from None


def _digits(*values: torch.Tensor) -> list[str]:
    """Two numbers, with as many digits as tell them apart, 6 at least."""
    numbers = [value.item() if value.imag else value.real.item() for value in values]
    texts = [[f"{number:.{digits}g}" for number in numbers] for digits in (6, 9, 12, 15, 17)]
    return next((pair for pair in texts if pair[0] != pair[1]), texts[0])
