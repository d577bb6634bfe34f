"""What a container may use: limits of control groups, of version 1 and 2.

Source: the kernel's manual, cgroup-v2.rst, and cgroup-v1/memory.rst.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .ask import text_of

NO_LIMIT_BYTES = 2**60  # version 1 says "none" with a number about 2**63


@dataclass(frozen=True)
class Limits:
    """None: no limit. `cpus`: cores' worth of time."""

    memory_bytes: int | None = None
    used_bytes: int | None = None
    cpus: float | None = None


def read(
    root: Path = Path("/sys/fs/cgroup"), own: Path | str = Path("/proc/self/cgroup")
) -> Limits:
    """The tightest limits of this process's group and all above it. Local; raises nothing.

    `own`: the file whose lines `number:controllers:/path` say which group that is.
    """
    paths = _paths(text_of(own))
    memory, cpus = [], []
    for folder in _folders(root, paths.get("", "/")):
        memory.append((_bytes(folder / "memory.max"), folder / "memory.current"))
        cpus.append(_quota(*_two(text_of(folder / "cpu.max"))))
    for folder in _folders(root / "memory", paths.get("memory", "/")):
        limit = _bytes(folder / "memory.limit_in_bytes")
        memory.append((limit, folder / "memory.usage_in_bytes"))
    for name in ("cpu", "cpu,cpuacct"):
        for folder in _folders(root / name, paths.get("cpu", "/")):
            quota = text_of(folder / "cpu.cfs_quota_us"), text_of(folder / "cpu.cfs_period_us")
            cpus.append(_quota(*quota))
    limited = [(limit, used) for limit, used in memory if limit is not None]
    limit, used = min(limited, default=(None, None))
    return Limits(limit, used and _bytes(used), min(filter(None, cpus), default=None))


def _paths(text: str) -> dict[str, str]:
    found = {}
    for line in text.splitlines():
        _, controllers, path = _three(line)
        found |= dict.fromkeys(controllers.split(","), path)
    return found


def _folders(root: Path, path: str) -> Iterator[Path]:
    """The group's folder and all above it; inside a container only the root exists."""
    folder = root / path.lstrip("/")
    while folder != root and root in folder.parents:
        yield folder
        folder = folder.parent
    yield root


def _three(line: str) -> tuple[str, str, str]:
    number, _, rest = line.partition(":")
    controllers, _, path = rest.partition(":")
    return number, controllers, path


def _two(text: str) -> tuple[str, str]:
    first, _, second = text.partition(" ")
    return first, second


def _bytes(path: Path) -> int | None:
    text = text_of(path)
    return int(text) if text.isdecimal() and int(text) < NO_LIMIT_BYTES else None


def _quota(quota_us: str, period_us: str) -> float | None:
    if quota_us.isdecimal() and period_us.isdecimal() and int(period_us) and int(quota_us):
        return int(quota_us) / int(period_us)
    return None  # "max", -1, or no such file
