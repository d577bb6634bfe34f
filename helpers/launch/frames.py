"""Which frames of a stack are the reader's own, and how a place in code is named."""

import importlib.util
import linecache
import os
import re
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType

_LAUNCHER = str(Path(__file__).parent)
_HELPERS = str(Path(__file__).parents[1])
_TORCH = importlib.util.find_spec("torch").submodule_search_locations[0]
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


@dataclass(frozen=True)
class Frame:
    """One line of a stack."""

    file: str
    line: int
    function: str
    text: str = ""

    @property
    def is_shown(self) -> bool:
        """Whether the frame is the reader's own or a helper's: not a library, not the launcher."""
        return not self.file.startswith((_LAUNCHER, "<frozen", "<string>", *_LIBRARIES))

    @property
    def is_own(self) -> bool:
        return self.is_shown and not self.file.startswith(_HELPERS)

    def at_home(self, home: Mapping[str, str] | None) -> "Frame":
        """This frame with the file that it came from, where it travelled by value."""
        return (
            replace(self, file=(home or {}).get(self.function, self.file)) if self.is_sent else self
        )

    @property
    def is_sent(self) -> bool:  # what cloudpickle makes of a file's name
        return self.file == "<dynamic-code>"

    @property
    def place(self) -> str:
        return f"{short_name(self.file)}:{self.line}"

    def __str__(self) -> str:
        linecache.checkcache(self.file)  # the reader edits scripts between launches
        text = self.text or linecache.getline(self.file, self.line).strip()
        return f"{self.place}, in {self.function}" + (f": {text}" if text else "")


def short_name(file: str) -> str:
    """`file` as a reader would name it: a notebook cell, a path below here, or the whole path."""
    if "ipykernel" in file or file.startswith(("<ipython-input", "<dynamic-code>")):
        return "cell"
    relative = os.path.relpath(file) if os.path.isabs(file) else file
    return file if relative.startswith("..") else relative


def own_place(frames: list[Frame]) -> str:
    """Where the reader's own code stood last; a helper's place if no frame is the reader's."""
    for keep in (lambda frame: frame.is_own, lambda frame: frame.is_shown, lambda frame: True):
        kept = [frame for frame in frames if keep(frame)]
        if kept:
            return kept[-1].place
    return "place unknown"


def is_torch(file: str) -> bool:
    """Whether `file` belongs to PyTorch."""
    return file.startswith(_TORCH)


_DUMPED = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')


def read_stack(text: str, main_thread: str) -> list[Frame]:
    """Frames of `main_thread` in what faulthandler wrote, outermost first."""
    block = next((b for b in re.split(r"\n(?=\S)", text) if main_thread in b.split("\n")[0]), "")
    found = [match.groupdict() for match in map(_DUMPED.match, block.splitlines()) if match]
    for frame in found:  # faulthandler writes ü as \\xfc
        frame["file"] = re.sub(
            r"\\x([0-9a-f]{2})|\\u([0-9a-f]{4})",
            lambda code: chr(int(code[1] or code[2], 16)),
            frame["file"],
        )
    return [Frame(f["file"], int(f["line"]), f["function"]) for f in reversed(found)]


def code_home(function: Callable) -> dict[str, str]:
    """The file of each function that is defined in `function`, itself included, by name."""
    code = getattr(function, "__code__", None)
    return {each.co_name: each.co_filename for each in _codes(code)} if code else {}


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
