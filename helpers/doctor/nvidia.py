"""What NVIDIA's driver says of itself, its GPUs and the links between them: nvidia-smi.

Read without torch, so that a torch for the CPU, or none, does not hide the GPUs. Written for
GPUs, tested with what nvidia-smi prints; not run on a machine with GPUs.
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .ask import Answer, one_line, said_by, text_of

LIMIT_S = 10.0  # a first call wakes the driver, which takes seconds on a large machine
QUERY = ("nvidia-smi", "--query-gpu=driver_version,name", "--format=csv,noheader")
TOPOLOGY = ("nvidia-smi", "topo", "-m")
_GPU = re.compile(r"\s*(\d{3,4}(?:\.\d+)+)\s*,\s*(\S.*?)\s*")
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")  # the matrix underlines its head


@dataclass(frozen=True)
class Nvidia:
    """`driver`: its version, "" for none. `trouble`: why nvidia-smi does not answer although a
    driver or the program is there. `links`: how many pairs of GPUs are joined how (NV4, PIX)."""

    driver: str = ""
    names: tuple[str, ...] = ()
    trouble: str = ""
    links: tuple[tuple[str, int], ...] = ()


def read(ask: Callable[..., Answer] = said_by, proc: str = "/proc/driver/nvidia") -> Nvidia:
    """Ask nvidia-smi and the driver's own file. Local; raises nothing."""
    answer = ask(QUERY, LIMIT_S)
    loaded = _loaded_version(text_of(f"{proc}/version"))
    if answer.trouble:
        is_there = bool(loaded) or not answer.is_absent or Path(f"{proc}/gpus").is_dir()
        return Nvidia(loaded, (), answer.trouble if is_there else "")
    cells = [found.groups() for found in map(_GPU.fullmatch, answer.text.splitlines()) if found]
    if not cells:
        is_none = answer.text.startswith("No devices")
        return Nvidia(loaded, (), one_line(answer.text) if is_none else "nvidia-smi makes no sense")
    names = tuple(one_line(name) for _, name in cells)
    links = tuple(count_links(ask(TOPOLOGY, LIMIT_S).text)) if len(names) > 1 else ()
    return Nvidia(cells[0][0], names, "", links)


def _loaded_version(text: str) -> str:
    found = re.search(r"\b(\d{3,4}\.\d+(?:\.\d+)?)\b", text)
    return found[1] if found else ""


def count_links(matrix: str) -> list[tuple[str, int]]:
    """How many pairs of GPUs each kind of link joins, from `nvidia-smi topo -m`. Local.

    NV4 is four NVLinks; PIX, PXB, PHB, NODE and SYS are ways over PCIe, from one bridge to across
    sockets.
    """
    lines = [line.split() for line in _ESCAPES.sub("", matrix).splitlines()]
    gpus = [words for words in lines if len(words) > 1 and re.fullmatch(r"GPU\d+", words[0])]
    # The head begins with GPU0 too: its second word is another GPU's name.
    rows = [words for words in gpus if not words[1].startswith("GPU")]
    pairs = Counter(
        rows[i][1 + j]
        for i in range(len(rows))
        for j in range(i + 1, len(rows))
        if 1 + j < len(rows[i])
    )
    return sorted(pairs.items())
