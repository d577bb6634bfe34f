"""What every file of the repository keeps to: its size, and how it ends.

    python tests/file_rules.py FILES

names what it finds, and exits with 1 if there was anything.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

MAX_BYTES, MAX_NOTEBOOK_BYTES = 500_000, 1_500_000
EXEMPT = "book/_static/vendor/"


def findings(path: Path) -> Iterator[str]:
    if EXEMPT in path.as_posix() or not path.is_file():
        return
    content = path.read_bytes()
    limit = MAX_NOTEBOOK_BYTES if path.suffix == ".ipynb" else MAX_BYTES
    if len(content) > limit:
        yield f"{path}: {len(content)} bytes, expected at most {limit}"
    if content and b"\0" not in content and (content[-1:] != b"\n" or content[-2:] == b"\n\n"):
        yield f"{path}: expected exactly one newline at its end"


def main(paths: list[Path]) -> int:
    found = [finding for path in paths for finding in findings(path)]
    print("\n".join(found)) if found else None
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main([Path(name) for name in sys.argv[1:]]))
