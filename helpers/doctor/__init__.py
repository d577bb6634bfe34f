"""What this machine has, and what will not work on it: `python -m helpers.doctor`."""

from .command import main

__all__ = ["main"]
