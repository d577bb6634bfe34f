"""What the equality gate says, printed without the digits that differ between machines."""

import re
from functools import partial
from textwrap import fill
from typing import Any

from helpers.compare.training import assert_same_training

_WIDTH = 44  # of a line, so that it fits a phone; what is longer goes on below


def verdict(*training: Any, resume: bool = False, **options: Any) -> float | None:
    """Print the gate's verdict, and return the largest error, or None where it is red. Local.

    Takes what `assert_same_training` takes; nothing is stopped and resumed unless `resume` is
    set. Green is one word. Red tells the variant; when, on which rank and in which
    tensor it was first seen; the likely cause. How far off that tensor is, is left out: a
    notebook's output is compared on other machines. Other errors are raised as they are.
    """
    try:
        error = assert_same_training(*training, resume=resume, **options)
    except AssertionError as red:
        print(_in_red(str(red)))
        return None
    print("green")
    return error


def _in_red(told: str) -> str:
    """Lay out what the gate told: `variant: when, rank: what is so far off`, then the cause."""
    found, cause = told.splitlines()
    variant, when, seen = found.split(": ", maxsplit=2)
    seen = re.sub(r"( is \S+ off| where one process has \S+)?, allowed .*", "", seen)
    lines = (f"red: {variant}", f"  first seen: {when}: {seen}", f"  {cause}")
    layout = partial(fill, width=_WIDTH, subsequent_indent="    ", break_on_hyphens=False)
    return "\n".join(map(layout, lines))
