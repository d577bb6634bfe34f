"""python -m helpers.gate.examples: list the scripts and their faults, or write one of them."""

import argparse
import sys
from pathlib import Path

from helpers.gate.examples import FAULTS, SCRIPTS, path_of


def main(words: list[str] | None = None) -> int:
    """The command; returns its exit code: 0, or 2 where nothing was written. Local."""
    parser = argparse.ArgumentParser(
        prog="python -m helpers.gate.examples",
        description="Lists the examples; with a name and a file, writes one to start from.",
    )
    parser.add_argument("name", nargs="?", help="a script's name, or the number of a fault in it")
    parser.add_argument("file", nargs="?", type=Path, help="where it goes; never over another")
    found = parser.parse_args(words)
    if found.name is None:
        print(listed())
        return 0
    try:
        if found.file is None:
            raise ValueError("found no file to write, expected one, such as my_training.py")
        text = text_of(found.name)
        with found.file.open("x", encoding="utf-8") as file:
            file.write(text)
    except (ValueError, OSError) as error:
        print(f"nothing was written: {error}", file=sys.stderr)
        return 2
    return 0


def text_of(name: str) -> str:
    """Return a script, right or with the fault of this number. ValueError: no such. Local."""
    if name in SCRIPTS:
        return path_of(name).read_text(encoding="utf-8")
    if name.isdecimal() and int(name) < len(FAULTS):
        return FAULTS[int(name)].text()
    raise ValueError(
        f"found {name!r}, expected {', '.join(SCRIPTS)}, or a number up to {len(FAULTS) - 1}"
    )


def listed() -> str:
    """Return the scripts, each with its faults by number. Local."""
    lines = []
    for script in SCRIPTS:
        lines.append(script)
        lines += [
            f"  {number:2}  {fault.name}"
            for number, fault in enumerate(FAULTS)
            if fault.script == script
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
