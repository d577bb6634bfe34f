"""What was found as text for people."""

from collections.abc import Mapping, Sequence

from helpers.compare.outcome import Outcome

_WIDTH = 46
_VERDICTS = {True: "same", False: "DIFFERS", None: "not tried"}

#: The verdict comes first: a phone shows the beginning of a line.
HEAD = f"{'verdict':9}  {'error':>7}  {'of':{_WIDTH}}  first at"


def row(outcome: Outcome) -> str:
    """Return one variant's line: verdict, largest error, the variant, where it begins. Local."""
    verdict = _VERDICTS[outcome.is_same]
    error = "" if outcome.is_same is None else f"{outcome.error:.1e}"
    return f"{verdict:9}  {error:>7}  {outcome.variant!s:{_WIDTH}}  {_place(outcome)}".rstrip()


def _place(outcome: Outcome) -> str:
    if outcome.difference is None:
        return ""
    tensor = next(iter(outcome.difference.names), "")
    return f"{outcome.when}, rank {outcome.rank}: {outcome.difference.kind} {tensor}".rstrip()


def summary(outcomes: Sequence[Outcome]) -> str:
    """Return the number that differ, the first of them in full, and every likely cause. Local."""
    lines = [f"allowed, as parts of a norm: {_allowed(outcomes[0].allowed)}"]
    tried = [outcome for outcome in outcomes if outcome.is_same is not None]
    differing = [outcome for outcome in tried if not outcome.is_same]
    if not differing:
        lines.append(f"same: all {len(tried)} train as one process on the whole batch does")
        return "\n".join(lines)
    lines += [f"DIFFERS: {len(differing)} of {len(tried)}; the first:", f"  {differing[0].told}"]
    for cause in dict.fromkeys(outcome.cause for outcome in differing):
        of = [outcome.variant for outcome in differing if outcome.cause == cause]
        where = "" if len(of) == len(differing) else f", first at {of[0]}"
        lines.append(f"likely cause ({len(of)} of {len(differing)}{where}): {cause}")
    return "\n".join(lines)


def _allowed(allowed: Mapping[str, float]) -> str:
    if len(set(allowed.values())) == 1:
        return f"{next(iter(allowed.values())):.0e}"
    return ", ".join(f"{kind} {part:.0e}" for kind, part in allowed.items())
