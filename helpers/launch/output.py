"""What the ranks printed: tagged, in rank order, rank 0 as it comes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from helpers.launch.job import RankFiles

KEEP_BYTES = 1_000_000  # a rank


def tagged(rank: int, text: str) -> str:
    """`text` with its rank before each line."""
    return "".join(f"[rank {rank}] {line}\n" for line in text.splitlines())


def as_report(line: str) -> dict[str, Any] | None:
    """The JSON object that `line` alone is, or None."""
    line = line.strip()
    if not (line.startswith("{") and line.endswith("}")):
        return None
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _is_report(line: str) -> bool:
    return as_report(line) is not None


def read_report(stdout: Path) -> dict[str, Any] | None:
    """The last line of the file that alone is a JSON object, parsed, or None."""
    report = None
    if stdout.exists():
        with stdout.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                found = as_report(line)
                report = report if found is None else found
    return report


def read_output(all_files: list[RankFiles]) -> str:
    """Everything printed, by rank: its stdout, then its stderr; the last 1 MB a rank."""
    return "".join(tagged(rank, rank_text(files)) for rank, files in enumerate(all_files))


def rank_text(files: RankFiles) -> str:
    """The last 1 MB that a rank printed, saying what was cut."""
    return last_text(files.stdout) + last_text(files.stderr)


def last_text(path: Path) -> str:
    """The last 1 MB of a file, with its last line ended, saying what was cut; "" without one."""
    if not path.exists():
        return ""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - KEEP_BYTES))
        text = file.read().decode("utf-8", errors="replace")
    text += "" if text.endswith("\n") or not text else "\n"
    if size <= KEEP_BYTES:
        return text
    whole_lines = text.partition("\n")[2] or text
    return f"... {size - KEEP_BYTES:,} bytes cut: the last 1 MB is kept\n{whole_lines}"


class Echo:
    """Prints the lines of one rank's stdout while they are written, all but the report.

    A line that is a JSON object is held back, with what follows, until a later one shows that
    it was not the last; what is printed in all is thus the output less the report.
    """

    def __init__(self, rank: int, path: Path, write: Callable[[str], Any]) -> None:
        self.rank, self.path, self.write = rank, path, write
        self._read_bytes = 0
        self._held: list[str] = []

    def poll(self, *, is_over: bool = False) -> None:
        """Print what has come since, up to 1 MB in all; at the end also the last 1 MB."""
        if not self.path.exists() or (self._read_bytes >= KEEP_BYTES and not is_over):
            return
        size = self.path.stat().st_size
        cut_bytes = max(0, size - KEEP_BYTES - self._read_bytes) if is_over else 0
        with self.path.open("rb") as file:
            file.seek(self._read_bytes + cut_bytes)
            data = file.read(KEEP_BYTES)
        if cut_bytes:
            data = data.partition(b"\n")[2]
            self._take(f"... {cut_bytes:,} bytes cut")
        end = len(data) if is_over else data.rfind(b"\n") + 1
        self._read_bytes += end
        for line in data[:end].decode("utf-8", errors="replace").splitlines():
            self._take(line)
        if is_over:
            held = self._held[1:] if self._held and _is_report(self._held[0]) else self._held
            self._print(held)

    def _take(self, line: str) -> None:
        if _is_report(line):
            self._print(self._held)
            self._held = [line]
        elif self._held:
            self._held.append(line)
        else:
            self._print([line])

    def _print(self, lines: list[str]) -> None:
        if lines:
            self.write(tagged(self.rank, "\n".join(lines)))
