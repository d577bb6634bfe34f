"""One small all-reduce for each backend: values checked, under a limit of time.

With gloo on the CPU, and with NCCL one rank a GPU where there are GPUs: that half is tested with
results made up for it, and was not run on a machine with GPUs.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from .row import BAD, Row

TOPIC = "all-reduce"
#: From when the ranks have started. NCCL wakes every GPU first, which takes seconds.
LIMIT_S = 20.0
#: Longer, so that the launcher ends the ranks and says where each of them stood.
GROUP_TIMEOUT_S = 2 * LIMIT_S
LENGTH = 1000
MOST_GLOO_RANKS = 8
_TIMED_OUT = {
    "gloo": ("gloo_interfaces", "busy"),
    "nccl": ("nccl_debug", "p2p_off", "nccl_interfaces", "busy"),
}


@dataclass(frozen=True)
class AllReduce:
    """How it went. `sums`: what each rank holds at the end; `call_s`: of the slowest rank's
    all-reduce; `launch_s`: of the fastest launch, start of the ranks to their end."""

    backend: str
    num_ranks: int
    sums: tuple[tuple[float, ...], ...] = ()
    call_s: float = 0.0
    launch_s: float = 0.0
    trouble: str = ""
    is_timeout: bool = False


def sum_on_rank(backend: str, timeout_s: float) -> tuple[list[float], float]:
    """Return the sum of what all ranks give, and its seconds. Every rank must call this.

    Rank r gives r + 1 times 0, 1, 2, ...: whole numbers, which every order sums exactly, and no
    two alike, so that nothing can be in a wrong place.
    """
    import torch
    import torch.distributed as dist

    from helpers.process_group import process_group

    with process_group(backend=backend, timeout_s=timeout_s) as ranks:
        numbers = (ranks.rank + 1) * torch.arange(float(LENGTH), device=ranks.device)
        start_s = time.perf_counter()
        dist.all_reduce(numbers)
        found = numbers.tolist()  # waits for a GPU, too
        return found, time.perf_counter() - start_s


def measure(
    backend: str,
    num_ranks: int,
    *,
    limit_s: float = LIMIT_S,
    launches: int = 1,
    on_rank: Callable[[str, float], tuple[list[float], float]] = sum_on_rank,
) -> AllReduce:
    """Launch the ranks, sum, and return how it went; raises nothing but KeyboardInterrupt. Local.

    `launches`: one more than once for the seconds, since the first one loads torch.
    """
    from helpers.launch import RankFailed, run_function

    seconds = []
    try:
        _prepare_quietly()
        for _ in range(launches):
            start_s = time.perf_counter()
            results = run_function(
                on_rank, backend, GROUP_TIMEOUT_S, nproc_per_node=num_ranks, timeout_s=limit_s
            )
            seconds.append(time.perf_counter() - start_s)
    except RankFailed as failed:
        is_timeout = "timed out" in failed.message.lower()
        is_timeout |= failed.exception_type == "TimeoutError"
        return AllReduce(backend, num_ranks, trouble=str(failed), is_timeout=is_timeout)
    except Exception as error:  # whatever keeps ranks from starting is a finding, not an end
        return AllReduce(backend, num_ranks, trouble=f"{type(error).__name__}: {error}")
    sums = tuple(tuple(found) for found, _ in results)
    return AllReduce(backend, num_ranks, sums, max(s for _, s in results), min(seconds))


def _prepare_quietly() -> None:
    """Start the launcher's server with its stderr nowhere: stopped midway, it prints its stack.

    What ranks say is not lost: the launcher takes it to files.
    """
    from helpers.launch import fork_server

    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 2)
        fork_server.prepare()
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def row(done: AllReduce) -> Row:
    """The finding. Local."""
    name = f"{done.backend}, {done.num_ranks} rank" + "s" * (done.num_ranks > 1)
    if done.trouble:
        advice = _TIMED_OUT[done.backend] if done.is_timeout else ("all_reduce_failed",)
        return Row(TOPIC, name, done.trouble, BAD, advice)
    wrong = first_wrong(done)
    if wrong:
        return Row(TOPIC, name, wrong, BAD, ("wrong_sum",))
    words = f"{LENGTH} sums right on every rank, in {1e3 * done.call_s:.1f} ms"
    return Row(TOPIC, name, f"{words}; a launch {done.launch_s:.1f} s")


def row_without_loopback(advice: tuple[str, ...]) -> Row:
    """The finding where ranks cannot meet; torch would try for the whole limit. Local."""
    return Row(TOPIC, "all backends", "not tried: ranks meet over loopback", BAD, advice)


def first_wrong(done: AllReduce) -> str:
    """The first number that is wrong, in words; "" where all are right. Local."""
    factor = done.num_ranks * (done.num_ranks + 1) / 2
    expected = [factor * index for index in range(LENGTH)]
    if len(done.sums) != done.num_ranks:
        return f"{len(done.sums)} ranks have answered, expected {done.num_ranks}"
    for rank, sums in enumerate(done.sums):
        if len(sums) != LENGTH:
            return f"rank {rank} holds {len(sums)} numbers, expected {LENGTH}"
        for index, (found, right) in enumerate(zip(sums, expected, strict=True)):
            if found != right:
                return f"rank {rank} holds {found:g} at {index}, expected {right:g}"
    return ""
