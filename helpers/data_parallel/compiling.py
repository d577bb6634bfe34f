"""torch.compile round a wrapper: the module inside is compiled, the wrapper's own steps are not."""

import functools
from collections.abc import Callable
from typing import Any

import torch


def not_compiled(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method, which runs as it is where the code around it is being compiled.

    torch.compiler.disable does that too, but as a decorator it imports the compiler, which takes
    two seconds in every rank, compiled or not.
    """

    @functools.wraps(method)
    def run(*arguments: Any, **named: Any) -> Any:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(method)(*arguments, **named)
        return method(*arguments, **named)

    return run
