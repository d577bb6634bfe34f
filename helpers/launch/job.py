"""What every rank of a launch is told, and the files through which it answers."""

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Tells a rank to write down where it stands, and go on. A script may use SIGTERM itself.
DUMP_STACK = signal.SIGUSR2


@dataclass(frozen=True)
class Job:
    """One launch, as sent to each rank (picklable)."""

    folder: str  # holds one sub-folder per rank
    working_folder: str
    environment: dict[str, str]
    module_path: list[str]  # the caller's sys.path
    num_threads: int
    launcher: int  # its process id
    script: str | None = None
    arguments: tuple[str, ...] = ()
    function: bytes | None = None  # cloudpickle of (function, arguments)

    def rank_files(self, rank: int) -> "RankFiles":
        return RankFiles(Path(self.folder) / str(rank))


@dataclass(frozen=True)
class RankFiles:
    """The files of one rank: what it printed, and how it stands."""

    folder: Path

    @property
    def stdout(self) -> Path:
        return self.folder / "stdout"

    @property
    def stderr(self) -> Path:
        return self.folder / "stderr"

    @property
    def stack(self) -> Path:  # written by faulthandler when the rank is told to stop
        return self.folder / "stack"

    @property
    def started(self) -> Path:
        return self.folder / "started.json"

    @property
    def ended(self) -> Path:  # the script has come to its end
        return self.folder / "ended.json"

    @property
    def left(self) -> Path:  # and so have its threads and exit handlers
        return self.folder / "left.json"

    @property
    def error(self) -> Path:
        return self.folder / "error.json"


def write_json(path: Path, value: Any) -> None:
    """Write `value` whole or not at all: a reader never meets half a file."""
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(value))
    os.replace(draft, path)


def read_json(path: Path) -> Any | None:
    """The value in `path`, or None where the file does not exist."""
    return json.loads(path.read_text()) if path.exists() else None
