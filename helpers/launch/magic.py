"""`%torchrun`: the words of a terminal's torchrun, in a notebook cell."""

import shlex
from dataclasses import dataclass
from typing import Any

from IPython.core.error import UsageError

from helpers.launch import fork_server
from helpers.launch.launcher import run_and_echo

_USAGE = "%torchrun [--nproc-per-node N] SCRIPT [ARGUMENTS ...]"
TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Command:
    """A parsed line."""

    nproc_per_node: int
    script: str
    arguments: tuple[str, ...]


def parse(line: str) -> Command:
    """The command in `line`. ValueError names an option that is unknown or not for a notebook."""
    words = shlex.split(line)
    nproc_per_node = "1"  # torchrun's default
    while words and words[0].startswith("-"):
        option, has_value, value = words.pop(0).partition("=")
        name = option.replace("_", "-")
        if name == "--standalone":  # what a launch from here always is
            continue
        if name != "--nproc-per-node":
            raise ValueError(_refusal(option, name))
        if not has_value:
            value = words.pop(0) if words else ""
        nproc_per_node = value
    if not words:
        raise ValueError(f"no script named; expected {_USAGE}")
    return Command(_count(nproc_per_node), words[0], tuple(words[1:]))


def _refusal(option: str, name: str) -> str:
    from torch.distributed.run import get_args_parser  # slow to import, seldom needed

    known = get_args_parser().format_help()
    if f"{name} " in known or f"{name}," in known:
        return f"{option} is for torchrun in a terminal; here: {_USAGE}"
    return f"torchrun has no option {option}; expected {_USAGE}"


def _count(value: str) -> int:
    from torch.distributed.run import determine_local_world_size

    if value == "gpu" and not _has_gpu():
        raise ValueError("--nproc-per-node gpu: found no GPU on this machine")
    try:
        count = determine_local_world_size(value)  # also "auto", "cpu", "gpu"
    except ValueError:
        message = f"--nproc-per-node is {value!r}; expected a number, auto, cpu or gpu"
        raise ValueError(message) from None
    if count < 1:
        raise ValueError(f"--nproc-per-node is {value!r}; expected 1 or more")
    return count


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def torchrun(line: str) -> dict[str, Any] | None:
    """Run a script on several ranks: `%torchrun --nproc-per-node 2 script.py --option value`.

    Prints what the ranks print, in rank order, and returns rank 0's report (its last line that
    alone is a JSON object), or None. A rank that fails makes the cell fail.
    """
    try:
        command = parse(line)
    except ValueError as error:
        raise UsageError(str(error)) from None  # IPython shows it as one line
    completed = run_and_echo(
        command.script,
        command.arguments,
        command.nproc_per_node,
        TIMEOUT_S,
        env=None,
        write=lambda text: print(text, end="", flush=True),
    )
    return completed.result


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext helpers.launch`: register `%torchrun` and warm the fork server up."""
    fork_server.prepare()
    shell.register_magic_function(torchrun, "line")
