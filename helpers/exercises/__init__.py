"""Checks for the exercises: `exercises.check(name, solution)` in a cell, offline."""

from helpers.exercises.checking import check

__all__ = ["check"]
