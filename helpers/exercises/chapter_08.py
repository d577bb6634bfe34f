"""Checks of the chapter "All-reduce by hand": values, messages and bytes of each rank."""

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist

from helpers.cost_model import ALGORITHMS, all_reduce_s, critical_path
from helpers.exercises.checking import Wrong, exercise, expect_close
from helpers.link import LINKS
from helpers.process_group import Ranks, process_group
from helpers.traffic import Traffic, count_traffic

LENGTHS = (12, 7, 2, 0)  # divides by four, does not, is shorter than the world, holds nothing
ITEM_BYTES = 8
TIMEOUT_S = 10.0

#: Situation -> (bytes, ranks, the link between any two of them).
SITUATIONS = {
    "loss": (4, 64, "ethernet_10g"),
    "gradients": (100_000_000, 6, "ethernet_10g"),
    "bucket": (1_000_000, 64, "ethernet_10g"),
}


@exercise("08-choose")
def choose(solution: Callable[[], Mapping[str, tuple[str, str]]]) -> None:
    """solution() -> {situation: (algorithm, "messages" or "bytes")}: the fastest, why. Local."""
    found = solution()
    for name, (size_bytes, world_size, link_name) in SITUATIONS.items():
        algorithm, reason = _answer(found, name)
        link = LINKS[link_name]
        cost_s = {each: all_reduce_s(each, size_bytes, world_size, link) for each in ALGORITHMS}
        best_s = min(cost_s.values())
        if cost_s[algorithm] > 1.01 * best_s:
            raise Wrong(
                f"{name}: {algorithm} takes {1e3 * cost_s[algorithm]:.3g} ms, "
                f"expected {1e3 * best_s:.3g} ms"
            )
        path = critical_path(algorithm, size_bytes, world_size)
        messages_s = path.messages * link.latency_s
        expected = "messages" if messages_s > cost_s[algorithm] / 2 else "bytes"
        if reason != expected:
            raise Wrong(
                f"{name}: {path.messages} messages cost {1e3 * messages_s:.3g} of "
                f"{1e3 * cost_s[algorithm]:.3g} ms, and the reason given is {reason!r}"
            )


def _answer(found: object, name: str) -> tuple[str, str]:
    if not isinstance(found, Mapping) or name not in found:
        raise Wrong(f"found {found!r}, expected a dict with {', '.join(SITUATIONS)}")
    answer = tuple(found[name])
    if len(answer) != 2 or answer[0] not in ALGORITHMS or answer[1] not in ("messages", "bytes"):
        raise Wrong(f"{name}: found {answer}, expected one of {ALGORITHMS} and messages or bytes")
    return answer


@exercise("08-ring", ranks=True)
def ring(solution: Callable[[torch.Tensor], None]) -> None:
    """solution(tensor) sums in place and sends 2 (n - 1) chunks. Every rank must call this."""
    with process_group(backend="gloo", timeout_s=TIMEOUT_S) as ranks:
        for length in LENGTHS:
            tensor, expected = _numbers(ranks, length)
            _, traffic = _counted(solution, tensor)
            expect_close(tensor, expected, f"{length} numbers: the sum")
            _expect_traffic(ranks, length, traffic, rounds=2)


@exercise("08-scatter", ranks=True)
def scatter(solution: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """solution(tensor) -> this rank's chunk of the sum. Every rank must call this."""
    with process_group(backend="gloo", timeout_s=TIMEOUT_S) as ranks:
        for length in LENGTHS:
            tensor, expected = _numbers(ranks, length)
            before = tensor.clone()
            found, traffic = _counted(solution, tensor)
            own = expected.tensor_split(ranks.world_size)[ranks.rank]
            expect_close(found, own, f"{length} numbers: chunk {ranks.rank} of the sum")
            expect_close(tensor, before, f"{length} numbers: the tensor that was given")
            _expect_traffic(ranks, length, traffic, rounds=1)


def _numbers(ranks: Ranks, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's numbers, and the sum over all ranks: integers, so that it is exact."""
    places = torch.arange(1.0, length + 1, dtype=torch.float64, device=ranks.device)
    n = ranks.world_size
    return places * (1 + ranks.rank), places * (n * (n + 1) / 2)


def _counted(solution: Callable, tensor: torch.Tensor) -> tuple[object, Traffic]:
    with count_traffic() as traffic:
        result = solution(tensor)
    dist.barrier()
    return result, traffic


def _expect_traffic(ranks: Ranks, length: int, traffic: Traffic, rounds: int) -> None:
    """Each chunk is sent by n - 1 ranks a round: so many bytes in all, and on no rank too many."""
    n, size_bytes = ranks.world_size, length * ITEM_BYTES
    used = [name for name, count in traffic.collectives.items() if count]
    if used:
        raise Wrong(f"called {', '.join(used)}, expected sends and receives only")
    most_bytes = rounds * (n - 1) * -(-length // n) * ITEM_BYTES
    if traffic.bytes_sent > most_bytes:
        raise Wrong(
            f"{length} numbers: {traffic.bytes_sent} bytes sent, {_times(traffic, size_bytes)}, "
            f"expected {most_bytes} at most"
        )
    if traffic.messages > rounds * (n - 1):
        raise Wrong(f"{traffic.messages} messages sent, expected {rounds * (n - 1)} at most")
    total = torch.tensor(traffic.bytes_sent, device=ranks.device)
    dist.all_reduce(total)
    if total.item() != rounds * (n - 1) * size_bytes:
        raise Wrong(
            f"{length} numbers: {total.item()} bytes sent by all ranks together, "
            f"expected {rounds * (n - 1) * size_bytes}"
        )


def _times(traffic: Traffic, size_bytes: int) -> str:
    return f"{traffic.bytes_sent / size_bytes:.2f} times the tensor" if size_bytes else "of nothing"
