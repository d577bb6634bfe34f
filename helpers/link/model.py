"""What a link costs: latency, bandwidth, slow ranks, stalls; the price of each operation."""

import math
import numbers
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

BYTES_PER_GB = 1e9


@dataclass(frozen=True)
class Link:
    """A link between any two ranks, by the model latency + size / bandwidth.

    `latency_s`: seconds that a message costs whatever its size.
    `bandwidth_gb_per_s`: of one direction, GB = 1e9 bytes; math.inf makes size free.
    `world_size`: collectives are priced as if there were so many ranks; messages are not.
    `slow_ranks`: rank -> factor, 1 or more: what goes to or from that rank takes so many times
    as long, and so does every collective, which goes through all its ranks.
    `stall_probability`, `stall_s`: this share of operations takes `stall_s` longer; which ones,
    `seed` says, the same on every run.

    Each rank has one port out and one port in (full duplex; one message at a time each way). A
    message starts when both its ends have posted it and both its ports are free, and holds them
    for latency + size / bandwidth; first matched, first served. A collective starts when all its
    ranks have called it and are free; it holds all their ports and is priced as a ring.

    Raises ValueError, naming the argument, for what is out of range.
    Source: Hockney 1994. Chapter 07 measures it.
    """

    latency_s: float
    bandwidth_gb_per_s: float
    world_size: int | None = None
    slow_ranks: Mapping[int, float] | None = field(default=None, kw_only=True, hash=False)
    stall_probability: float = field(default=0.0, kw_only=True)
    stall_s: float = field(default=0.0, kw_only=True)
    seed: int = field(default=0, kw_only=True)
    slow_motion: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        if self.slow_ranks is None:
            object.__setattr__(self, "slow_ranks", {})
        for name, (is_good, plain, expected) in _ARGUMENTS.items():
            found = getattr(self, name)
            _require(is_good(found), name, found, expected)
            object.__setattr__(self, name, plain(found))

    def __str__(self) -> str:
        """Return one line, which says that the link is emulated, and its slow motion if any."""
        parts = [f"{_seconds(self.latency_s)} + size / {_speed(self.bandwidth_gb_per_s)}"]
        parts += [f"priced as {self.world_size} ranks"] if self.world_size else []
        parts += [f"rank {rank} {f:g} times slower" for rank, f in self.slow_ranks.items()]
        if self.stall_probability:
            parts.append(f"{self.stall_probability:.0%} stall for {_seconds(self.stall_s)}")
        if self.slow_motion != 1:
            parts.append(f"in slow motion, {self.slow_motion:g} times slower than the real one")
        return "emulated link: " + ", ".join(parts)

    def slowed(self, factor: float) -> "Link":
        """Return this link in slow motion: `factor` times the latency, 1/factor the bandwidth.

        The real transfers take time as well (gloo on loopback: about 1 GB/s and some tenths of a
        millisecond a message), so a fast link can only be shown slowly. `sleep` stretches compute
        alike and `real_s` turns measured seconds back, so that all ratios stay as they are.
        """
        is_good = _is_number(factor) and 0 < factor < math.inf
        _require(is_good, "factor", factor, "> 0, finite")
        return replace(
            self,
            latency_s=self.latency_s * factor,
            bandwidth_gb_per_s=self.bandwidth_gb_per_s / factor,
            stall_s=self.stall_s * factor,
            slow_motion=self.slow_motion * factor,
        )

    def sleep(self, seconds: float) -> None:
        """Emulate compute of so many seconds: sleep them, in this link's slow motion. Local."""
        time.sleep(seconds * self.slow_motion)

    def real_s(self, measured_s: float) -> float:
        """Return what was measured in this link's slow motion as seconds of the real link."""
        return measured_s / self.slow_motion

    def message_s(self, size_bytes: float) -> float:
        """Return the seconds of one message between ranks that are not slow, without a stall."""
        return self.latency_s + self._transfer_s(size_bytes)

    def _transfer_s(self, size_bytes: float) -> float:
        is_good = _is_number(size_bytes) and 0 <= size_bytes < math.inf
        _require(is_good, "size_bytes", size_bytes, "bytes, 0 or more")
        return size_bytes / (self.bandwidth_gb_per_s * BYTES_PER_GB)

    def ring_s(self, size_bytes: float, world_size: int) -> float:
        """Return the seconds of an all-reduce: 2 (n - 1) messages of a n-th of the tensor each."""
        return self.collective_s("all_reduce", size_bytes, world_size)

    def collective_s(self, name: str, size_bytes: float, world_size: int) -> float:
        """Return the seconds of a collective over ranks that are not slow, priced as a ring.

        `name`: one of RING_STEPS. `size_bytes`: what all_reduce, broadcast, reduce move; for the
        others the whole, all ranks' parts together. `world_size` yields to the link's own.
        Raises ValueError, naming the argument, as the link itself does.
        """
        _require(name in RING_STEPS, "name", name, f"one of {', '.join(RING_STEPS)}")
        _require(_is_count(world_size), "world_size", world_size, "1 or more")
        transfer_s = self._transfer_s(size_bytes)
        n = self.world_size or world_size
        rounds, pieces = RING_STEPS[name]
        if pieces:
            return rounds * (n - 1) * self.message_s(size_bytes / n)
        return rounds * (n - 1) * self.latency_s + (transfer_s if n > 1 else 0.0)

    def slowdown(self, ranks: Iterable[int]) -> float:
        """Return the factor of the slowest of these ranks, 1 where none is slow."""
        return max((self.slow_ranks.get(rank, 1.0) for rank in ranks), default=1.0)

    def stall_of(self, key: str) -> float:
        """Return how many seconds the operation of this name stalls: the same on all its ranks."""
        stalls = random.Random(f"{self.seed} {key}").random() < self.stall_probability
        return self.stall_s if stalls else 0.0


#: Collective -> (times round the ring, whether a step moves an n-th of the bytes; else they
#: stream through all ranks one behind the other, and their seconds count once).
RING_STEPS = {
    "all_reduce": (2, True),
    "reduce_scatter": (1, True),
    "all_gather": (1, True),
    "all_to_all": (1, True),
    "gather": (1, True),
    "scatter": (1, True),
    "broadcast": (1, False),
    "reduce": (1, False),
    "barrier": (2, False),
}


def _require(is_good: bool, name: str, found: object, expected: str) -> None:
    if not is_good:
        raise ValueError(f"{name}: found {found!r}, expected {expected}")


def _is_number(value: object) -> bool:
    """Also numpy's scalars; a bool is none."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _is_whole(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return _is_whole(value) and value >= 1


def _are_factors(slow_ranks: object) -> bool:
    return isinstance(slow_ranks, Mapping) and all(
        _is_whole(rank) and rank >= 0 and _is_number(factor) and 1 <= factor < math.inf
        for rank, factor in slow_ranks.items()
    )


#: Argument -> (is it good, the plain numbers in it, what is expected). Plain, since links that
#: are equal have to print alike: by that the ranks know that they have opened the same.
_ARGUMENTS: dict[str, tuple[Callable[[Any], bool], Callable[[Any], Any], str]] = {
    "latency_s": (lambda x: _is_number(x) and 0 <= x < math.inf, float, "0 or more"),
    "bandwidth_gb_per_s": (lambda x: _is_number(x) and x > 0, float, "> 0"),
    "world_size": (
        lambda x: x is None or _is_count(x),
        lambda x: x and int(x),
        "None, or 1 or more",
    ),
    "slow_ranks": (
        _are_factors,
        lambda slow: {int(rank): float(factor) for rank, factor in slow.items()},
        "ranks with factors of 1 or more",
    ),
    "stall_probability": (lambda x: _is_number(x) and 0 <= x <= 1, float, "0 to 1"),
    "stall_s": (lambda x: _is_number(x) and 0 <= x < math.inf, float, "0 or more"),
    "seed": (_is_whole, int, "a whole number"),
    "slow_motion": (lambda x: _is_number(x) and 0 < x < math.inf, float, "> 0"),
}


def _seconds(seconds: float) -> str:
    for unit, scale in (("s", 1), ("ms", 1e3)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def _speed(gb_per_s: float) -> str:
    return f"{gb_per_s:.3g} GB/s" if gb_per_s >= 0.1 else f"{gb_per_s * 1e3:.3g} MB/s"
