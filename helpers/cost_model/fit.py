"""The link behind measured seconds: latency and bandwidth by relative least squares."""

import math
from collections.abc import Iterable

from helpers.link import Link

from .predict import BYTES_PER_GB

Sample = tuple[float, float, float]

#: Below this share of a sample's time, a latency's sign is rounding.
ROUNDING = 1e-9


def fit_link(samples: Iterable[Sample]) -> Link:
    """Return the Link that explains the samples best. Local.

    `samples`: (messages, sent_bytes, seconds) each, as of a `critical_path` and its measured time;
    at least two, with messages of different sizes on average. Minimises the sum of squared
    *relative* errors of messages x latency + bytes / bandwidth, so that 1 KB counts as much as
    64 MB. The fit wants times that the link ruled: median of several, warmed up.

    Raises ValueError, naming what was found: fewer than two samples; a sample that is negative
    or not finite, or took no time; all samples of one size of message; a latency or bandwidth
    that comes out negative (the samples do not follow this model).
    Sources: Hockney 1994. Chapter 07 fits a link first.
    """
    samples = [tuple(map(float, sample)) for sample in samples]
    _check(samples)
    # Each row says: (messages/seconds) x latency + (bytes/seconds) / bandwidth = 1.
    rows = [(messages / s, sent_bytes / s) for messages, sent_bytes, s in samples]
    latency_s, s_per_byte = _least_squares(rows)
    if latency_s < 0 and all(-latency_s * row[0] < ROUNDING for row in rows):
        latency_s = 0.0
    if latency_s < 0:
        raise ValueError(
            f"latency comes out as {latency_s:.3g} s: time grows faster than size in these "
            "samples, expected messages x latency + bytes / bandwidth"
        )
    if s_per_byte * max(row[1] for row in rows) < ROUNDING:
        raise ValueError(
            f"1 / bandwidth comes out as {s_per_byte * BYTES_PER_GB:.3g} s/GB: time does not grow "
            "with size in these samples; add larger ones"
        )
    return Link(latency_s, 1 / (s_per_byte * BYTES_PER_GB))


def _check(samples: list[Sample]) -> None:
    if len(samples) < 2:
        raise ValueError(f"samples: found {len(samples)}, expected at least 2")
    for index, (messages, sent_bytes, seconds) in enumerate(samples):
        is_finite = all(map(math.isfinite, (messages, sent_bytes, seconds)))
        if not (is_finite and messages >= 0 and sent_bytes >= 0 and seconds > 0):
            raise ValueError(
                f"samples[{index}]: found (messages, sent_bytes, seconds) = "
                f"({messages:g}, {sent_bytes:g}, {seconds:g}), expected finite, seconds above 0"
            )


def _least_squares(rows: list[tuple[float, float]]) -> tuple[float, float]:
    """Solve a x + b y = 1 for (x, y) over all rows (a, b), in the least squares sense."""
    # Columns of length one: messages and bytes differ by many orders.
    scale_a, scale_b = (math.hypot(*column) for column in zip(*rows, strict=True))
    scaled = [(a / (scale_a or 1), b / (scale_b or 1)) for a, b in rows]
    cosine = math.fsum(a * b for a, b in scaled)
    sum_a, sum_b = (math.fsum(column) for column in zip(*scaled, strict=True))
    determinant = (1 - cosine) * (1 + cosine)
    if not (scale_a and scale_b) or determinant < ROUNDING:
        raise ValueError(
            f"samples: found {len(rows)} with messages of one size, "
            "expected at least two sizes to tell latency from bandwidth"
        )
    x = (sum_a - cosine * sum_b) / determinant / scale_a
    y = (sum_b - cosine * sum_a) / determinant / scale_b
    return x, y
