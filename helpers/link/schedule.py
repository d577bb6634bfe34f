"""When each operation is due: ports and matches of all ranks, in memory that they share."""

import hashlib
import time
from dataclasses import dataclass

import numpy as np

from helpers import host_memory

#: Operations in flight at most, over all ranks; a job of the book has some hundreds.
ROWS = 4096
_ROW = np.dtype([("arrived", "i8"), ("read", "i8"), ("cost", "f8"), ("start", "f8"), ("due", "f8")])
POLL_S = 1e-4


@dataclass(frozen=True)
class Operation:
    """What all its ranks say alike of one operation: its name, its ranks, its price and size.

    `ports_out`, `ports_in`: global ranks whose ports it holds; `ends` so many post it. Where they
    name several prices, the highest holds.
    """

    key: str
    ends: int
    ports_out: tuple[int, ...]
    ports_in: tuple[int, ...]
    cost_s: float
    size_bytes: int = 0


class Schedule:
    """The times at which the ports of `world_size` ranks are free, and operations that wait.

    The last end to arrive fixes when the operation starts and is due: the first moment at which
    all ends have posted and all its ports are free. Whoever arrives reads the same row.
    """

    def __init__(self, memory: host_memory.SharedMemory, world_size: int) -> None:
        self._memory = memory
        ports, keys = 2 * world_size * 8, ROWS * 8
        self._out, self._in = np.frombuffer(memory.buffer, "f8", 2 * world_size).reshape(2, -1)
        self._keys = np.frombuffer(memory.buffer, "i8", ROWS, offset=ports)  # 0: a free row
        self._rows = np.frombuffer(memory.buffer, _ROW, ROWS, offset=ports + keys)

    @staticmethod
    def num_bytes(world_size: int) -> int:
        return 2 * world_size * 8 + ROWS * (8 + _ROW.itemsize)

    def arrive(self, operation: Operation, posted_s: float) -> int:
        """Say that one end has posted; return the row in which `due` will be read. Local."""
        key = _number(operation.key)
        with self._memory.locked():
            row = self._row(key)
            entry = self._rows[row]
            entry["arrived"] += 1
            entry["start"] = max(entry["start"], posted_s)
            entry["cost"] = max(entry["cost"], operation.cost_s)
            if entry["arrived"] == operation.ends:
                self._fix(entry, operation)
        return row

    def due(self, row: int, operation: Operation, timeout_s: float) -> tuple[float, float]:
        """Return when the operation starts and is due; wait for the ends that are missing. Local.

        Each end must call this once. Raises TimeoutError after `timeout_s`.
        """
        entry = self._rows[row]
        give_up_s = time.monotonic() + timeout_s
        while entry["due"] == 0:
            if self._memory.buffer is None:
                raise RuntimeError(f"{operation.key}: the link was closed before it was complete")
            if time.monotonic() > give_up_s:
                raise TimeoutError(
                    f"{operation.key}: {entry['arrived']} of {operation.ends} ranks have posted it"
                    f" after {timeout_s:g} s"
                )
            time.sleep(POLL_S)
        with self._memory.locked():  # the lock also orders memory where the processor does not
            times = float(entry["start"]), float(entry["due"])
            entry["read"] += 1
            if entry["read"] == operation.ends:
                self._rows[row], self._keys[row] = 0, 0
        return times

    def close(self) -> None:
        self._memory.close()

    def _row(self, key: int) -> int:
        """The row of this operation, or a free one for it."""
        found = np.flatnonzero(self._keys == key)
        if len(found):
            return int(found[0])
        free = int(np.argmin(self._keys != 0))
        if self._keys[free]:
            raise RuntimeError(f"{ROWS} operations wait on the emulated link; expected fewer")
        self._keys[free] = key
        return free

    def _fix(self, entry: np.void, operation: Operation) -> None:
        out, into = list(operation.ports_out), list(operation.ports_in)
        busy_s = max(self._out[out].max(initial=0.0), self._in[into].max(initial=0.0))
        entry["start"] = max(entry["start"], busy_s)
        due_s = entry["start"] + entry["cost"]
        self._out[out] = self._in[into] = due_s
        entry["due"] = due_s


def _number(key: str) -> int:
    """63 bits of the key, never 0: 0 marks a free row."""
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1 or 1
