"""A training script as a module, imported on the ranks and never in the command's own process."""

import functools
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

import torch


class ScriptError(ValueError):
    """A script that the gate cannot use; its text says why."""


@functools.cache
def load(path: str) -> ModuleType:
    """Return the script as a module, imported once in each process. Local.

    It finds what lies next to it, and what its package holds; it sees no words of a command, and
    what it draws or seeds leaves later random numbers as they would have been. Raises ScriptError
    where it is missing, fails, or ends the process in the way of sys.exit.
    """
    file = Path(path)
    check_file(file)
    name, folders = place_of(file)
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    sys.path[:] = [*folders, *(folder for folder in sys.path if folder not in folders)]
    sys.argv = [path]
    sys.modules[name] = module  # dataclasses look themselves up there
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            raise ScriptError(told(file, error)) from error
    return module


def check_file(file: Path) -> None:
    """Raise ScriptError unless it is there and Python by its name. Local."""
    if not file.is_file():
        raise ScriptError(f"no script {file.name!r} in {str(file.parent)!r}")
    if file.suffix != ".py":
        raise ScriptError(f"{file.name}: expected a name that ends in .py")


def place_of(file: Path) -> tuple[str, list[str]]:
    """Return a name for the module, dotted in a package, and the folders to import from. Local."""
    parts, root = [file.stem], file.parent
    while (root / "__init__.py").is_file():
        parts.insert(0, root.name)
        root = root.parent
    name = ".".join(parts) if parts[1:] else f"gate_script_{file.stem}"
    return name, list(dict.fromkeys((str(file.parent), str(root))))


def told(file: Path, error: BaseException) -> str:
    """Return what is wrong with a script, and in which of its lines. Local."""
    words = f"{file.name}: {type(error).__name__}: {error}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__)
             if frame.filename == str(file)]  # fmt: skip
    if isinstance(error, SystemExit):
        words += ", expected to be imported: what it does when run belongs under __main__"
    return words + (f" (line {lines[-1]})" if lines else "")
