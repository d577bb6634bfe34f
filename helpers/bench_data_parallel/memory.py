"""Peak bytes beyond the parameters, with two micro-batches of which the first is under no_sync."""

import ctypes
import gc
import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from helpers.memory import LiveBytes
from helpers.process_group import process_group

from .contenders import OURS, TORCH, WRAPS
from .rows import Bound, Row
from .training import LARGE, Model, Training

#: Activations are alike in both, and with more tokens they hide more of what the wrappers hold.
MODELS = tuple(
    replace(LARGE, words=f"{LARGE.words}, {num_tokens} tokens", num_tokens=num_tokens)
    for num_tokens in (16, 64)
)
DEFAULT_ROUNDS = 3
WHAT = "peak bytes beyond the parameters, two micro-batches under no_sync, on rank 0"
#: The buckets are planned anew in the second step: from the third on, steps are alike.
SETTLED = 2
BY_KERNEL = ", resident memory by the kernel"
#: zero_grad(set_to_none=...) -> what ours may need of what torch's class needs.
BOUNDS = {True: 0.55, False: 1.0}

_MMAP_THRESHOLD = -3  # glibc's malloc.h
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def num_ticks(rounds: int) -> int:
    """How often `measure` ticks. Local."""
    return len(MODELS) * len(BOUNDS) * 2 * (SETTLED + rounds)


def measure(rounds: int, tick: Callable[[], None]) -> list[Row]:
    """Return the peak megabytes of each contender, a sample a step. Every rank must call this.

    Counted by LiveBytes, which is open while the wrapper is made: it then sees torch's C++
    buckets. What else C++ may allocate out of its sight, the kernel's count of resident
    memory would show: it stands beside, where the system has one.
    """
    rows, by_kernel = [], []
    _give_back_at_once()
    with process_group(backend="gloo"):
        Training(MODELS[0], WRAPS[TORCH]).step(num_micro_batches=2)  # what is loaded once
        for model, (set_to_none, at_most) in itertools.product(MODELS, BOUNDS.items()):
            setting = f"{model.words}, zero_grad(set_to_none={set_to_none})"
            for name in (TORCH, OURS):
                counted, resident = _steps(model, name, set_to_none, rounds, tick)
                bounds = (Bound(TORCH, at_most),) if name == OURS else ()
                rows.append(Row(setting, name, counted, "MB", bounds))
                if resident:
                    by_kernel.append(Row(f"{setting}{BY_KERNEL}", name, resident, "MB"))
    return rows + by_kernel


def _steps(
    model: Model, name: str, set_to_none: bool, rounds: int, tick: Callable[[], None]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Peak megabytes of each step: what LiveBytes counts, and what the kernel does."""
    module = model.make()
    before = _resident_bytes(peak=False)
    counted, resident = [], []
    with LiveBytes() as memory:
        training = Training(model, lambda _: WRAPS[name](module))
        for index in range(SETTLED + rounds):
            memory.reset_peak()
            has_reset = _reset_resident_peak()
            training.step(num_micro_batches=2, set_to_none=set_to_none)
            if index >= SETTLED:
                counted.append(memory.peak_bytes / 1e6)
                resident += [(_resident_bytes(peak=True) - before) / 1e6] if has_reset else []
            tick()
    # Parameters and inputs were there before.
    return tuple(counted), tuple(resident)


def _give_back_at_once() -> None:
    """Have the C library ask the kernel for each large block, and give it back when it is freed."""
    if _STATUS.exists():
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, 1 << 20)


def _resident_bytes(peak: bool) -> int:
    """Bytes of this process that are in memory, now or at the most; 0 where no one counts."""
    if not _STATUS.exists():
        return 0
    if not peak:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # what an earlier contender has freed
    found = re.search(rf"^Vm{'HWM' if peak else 'RSS'}:\s*(\d+) kB", _STATUS.read_text(), re.M)
    return int(found[1]) * 1024 if found else 0


def _reset_resident_peak() -> bool:
    """Start a new peak; return whether the system lets us."""
    try:
        _CLEAR.write_text("5")
    except OSError:
        return False
    return True
