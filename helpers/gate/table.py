"""What was found as text for people."""

from collections.abc import Mapping, Sequence

from helpers.compare.outcome import Outcome

_WIDTH = 46
_VERDICTS = {True: "same", False: "DIFFERS", None: "not tried"}

HEAD = f"{'':{_WIDTH}}  {'verdict':9}  largest error  first at"


def row(outcome: Outcome) -> str:
    """Return one variant's line: verdict, largest error as a part of a norm, first place. Local."""
    verdict = _VERDICTS[outcome.is_same]
    error = "" if outcome.is_same is None else f"{outcome.error:.1e}"
    return f"{outcome.variant!s:{_WIDTH}}  {verdict:9}  {error:>13}  {_place(outcome)}".rstrip()


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
        number = sum(outcome.cause == cause for outcome in differing)
        lines.append(f"likely cause ({number} of {len(differing)}): {cause}")
    return "\n".join(lines)


def _allowed(allowed: Mapping[str, float]) -> str:
    if len(set(allowed.values())) == 1:
        return f"{next(iter(allowed.values())):.0e}"
    return ", ".join(f"{kind} {part:.0e}" for kind, part in allowed.items())
