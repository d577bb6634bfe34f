"""What the cost model says of buckets over layers that are all alike."""

import itertools
from collections.abc import Sequence

from helpers import cost_model
from helpers.link import Link


def predicted_s(
    counts: Sequence[int], layer_bytes: int, ready_s: Sequence[float], link: Link, **compute: float
) -> float:
    """Seconds of a step on two ranks whose buckets hold so many layers each, the first ready first.

    ready_s: when the gradient of each layer is there. compute: forward_s and backward_s.
    """
    ends = list(itertools.accumulate(counts))
    sizes = [layer_bytes * count for count in counts]
    return cost_model.step_s(sizes, [ready_s[end - 1] for end in ends], 2, link, **compute)
