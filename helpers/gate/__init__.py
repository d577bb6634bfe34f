"""Whether a script of yours trains as one process does: `python -m helpers.gate --help`."""

from .command import main

__all__ = ["main"]
