"""The record as text for people."""

GOAL = 0.9


def table(record: dict) -> str:
    """Return verdicts, bandwidths beside their goal, and the all-reduce's times. Local."""
    return "\n".join([*_verdicts(record), "", *_bandwidths(record), "", *_one_shot(record)])


def _verdicts(record: dict) -> list[str]:
    return [f"{name:<28} {verdict}" for name, verdict in record["verdicts"].items()]


def _bandwidths(record: dict) -> list[str]:
    lines = [f"{'GB/s':<44} {'ours':>8} {'torch':>8} {'bare':>8}  {'ours / bare':>11}"]
    for row in (*record["bandwidths"], record["small_tensors"]):
        speeds = " ".join(f"{row['gb_per_s'][name]:8.1f}" for name in ("ours", "torch", "bare"))
        has_goal = row is not record["small_tensors"] and not record["is_dry_run"]
        goal = ("  met" if row["of_bare"] >= GOAL else "  MISSED") if has_goal else ""
        lines.append(f"{row['name']:<44} {speeds}  {row['of_bare']:5.2f} {row['bare']}{goal}")
    return lines


def _one_shot(record: dict) -> list[str]:
    lines = [f"{'one-shot all-reduce':<44} {'ours':>11} {'backend':>11}"]
    for row in record["one_shot"]:
        where = f"{row['world_size']} ranks" + (", one GPU" if row["shares_gpu"] else "")
        if "failed" in row:
            lines.append(f"{where}: {row['failed'].splitlines()[0]}")
            continue
        times = " ".join(f"{1e6 * row['seconds'][name]:8.1f} us" for name in ("ours", "backend"))
        right = "equal bits" if row["equal_bits"] else "WRONG"
        lines.append(f"{where}, {row['size_bytes']:>9} bytes, {right:<14} {times}")
    return lines
