"""A script's result: one line of JSON from rank 0."""

import json
import os
import sys
from typing import Any


def report(**values: Any) -> None:
    """Print `values` as one line of JSON on rank 0; on other ranks do nothing. Local.

    The launcher returns the last such line as `Run.result`. Values may be numbers, strings,
    lists, dicts, None, and tensors or arrays (anything with `tolist`).
    Raises TypeError, naming the type, for what JSON cannot hold.
    """
    if os.environ.get("RANK", "0") == "0":
        sys.stdout.write(json.dumps(values, default=_plain) + "\n")
        sys.stdout.flush()


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"report() cannot write {type(value).__name__}; expected JSON or a tensor")
