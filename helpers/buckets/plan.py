"""Which gradients travel together, and in which order."""

import math
from collections.abc import Iterable, Sequence
from numbers import Real

from torch import Tensor

from helpers.cost_model.predict import LinkLike

from .by_link import by_link, size_bytes

MIB = 2**20
DEFAULT_CAP_BYTES = 25 * MIB
#: Small, so that the first message leaves early in backward.
DEFAULT_FIRST_CAP_BYTES = MIB

Plan = list[list[Tensor]]
Caps = float | Sequence[float] | None


def plan_buckets(
    parameters: Iterable[Tensor],
    cap_bytes: Caps = None,
    first_cap_bytes: float | None = None,
    *,
    link: LinkLike | None = None,
    ready_s: Sequence[float] | None = None,
    world_size: int | None = None,
) -> Plan:
    """Return the parameters of each bucket, in the order in which the buckets are sent. Local.

    `parameters`: in the order in which their gradients become ready. Until that has been
    observed, take the model's order reversed: `list(model.parameters())[::-1]`. A bucket has one
    dtype and one device.

    By caps, which are soft: a bucket is closed by the parameter that takes it to its cap or over.
    Those never closed come last, in the order of their first parameters.
    cap_bytes: of every bucket, or a sequence with a cap each, whose last goes on.
    first_cap_bytes: of the first one. Each dtype and device has a first bucket of its own.
    With neither: 1 MiB, then 25 MiB. With cap_bytes alone, the first bucket has it too.

    By a link: the buckets whose last all-reduce is predicted to end first (`cost_model.best_cuts`;
    exact where all parameters have one dtype and device, else for each of them as if it were
    alone). ready_s: seconds after the start of backward at which each gradient is ready, as
    `observe_ready_s` measures them; give every rank the same. None: ready in proportion to the
    bytes, in a backward that takes as long as all bytes take on the link. world_size: None is the
    open process group's; a link's own comes first.

    Raises ValueError for a cap that is not above 0, no caps at all, caps and a link together,
    ready_s that do not fit, a link without any world size.
    Source: arXiv:2006.15704, sections 3.2.3 and 4.2; the defaults are those of torch 2.13's
    DistributedDataParallel. Chapter 10.
    """
    if link is None:
        return _by_caps(parameters, _caps(cap_bytes, first_cap_bytes))
    if cap_bytes is not None or first_cap_bytes is not None:
        raise ValueError("plan_buckets: found caps and a link, expected one of them")
    return by_link(list(parameters), link, ready_s, world_size)


def _by_caps(parameters: Iterable[Tensor], caps: list[float]) -> Plan:
    closed: Plan = []
    opened: dict[tuple, list[Tensor]] = {}
    num_closed: dict[tuple, int] = {}
    for parameter in parameters:
        key = parameter.dtype, parameter.device
        bucket = opened.setdefault(key, [])
        bucket.append(parameter)
        at = num_closed.get(key, 0)
        if sum(map(size_bytes, bucket)) >= caps[min(at, len(caps) - 1)]:
            closed.append(opened.pop(key))
            num_closed[key] = at + 1
    return closed + list(opened.values())


def _caps(cap_bytes: Caps, first_cap_bytes: float | None) -> list[float]:
    if cap_bytes is None and first_cap_bytes is None:
        first_cap_bytes = DEFAULT_FIRST_CAP_BYTES
    rest = DEFAULT_CAP_BYTES if cap_bytes is None else cap_bytes
    caps = list(rest) if isinstance(rest, Sequence) else [rest]
    if first_cap_bytes is not None:
        caps = [first_cap_bytes, *caps]
    for cap in caps:
        if not (isinstance(cap, Real) and cap > 0 and not math.isnan(cap)):
            raise ValueError(f"cap: found {cap!r}, expected bytes, more than 0")
    if not caps:
        raise ValueError("cap_bytes: found no caps, expected one or more")
    return caps
