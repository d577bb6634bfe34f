"""Checks of chapter 10: overlap, seen in timestamps; hooks; the earliest end of any plan."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from helpers import link, problems
from helpers.cost_model import best_cuts, step_s
from helpers.exercises.checking import Wrong, exercise, expect_close
from helpers.link import Link
from helpers.process_group import Ranks, process_group
from helpers.traffic import count_traffic


@contextmanager
def _joined() -> Iterator[None]:
    """Wrong where a collective of the solution was left alone by another rank."""
    try:
        yield
    except RuntimeError as error:
        if not (isinstance(error, dist.DistBackendError) or "gloo" in str(error)):
            raise
        raise Wrong("a collective failed here: another rank did not enter it") from error


#: Takes its time, so that what it carries can be seen to travel while a layer computes.
SLOW = Link(12e-3, 1.0, world_size=2)
LAYERS = 4


@exercise("10-overlap", ranks=True)
def overlap(solution: Callable[[nn.Module, list[list[Tensor]]], None]) -> None:
    """solution(model, buckets): from then on, backward leaves averaged gradients. Every rank."""
    with process_group(backend=SLOW, timeout_s=4) as ranks, _joined():
        model = problems.make_sleeping(LAYERS, 4000, forward_s=0, backward_s=5e-3)
        last_first = list(model.parameters())[::-1]
        buckets = [last_first[:1], last_first[1:3], last_first[3:]]
        solution(model, buckets)
        for step in range(2):
            _one_step(model, buckets, step, ranks)


def _one_step(
    model: problems.SleepingModel, buckets: list[list[Tensor]], step: int, ranks: Ranks
) -> None:
    before = len(link.completions())
    model.zero_grad()
    model.spans.clear()
    (model(torch.zeros(1)).sum() * (ranks.rank + 1)).backward()
    mean = (ranks.world_size + 1) / 2
    for layer, parameter in enumerate(model.layers):
        expected = torch.full_like(parameter, mean / parameter.numel())
        what = f"step {step}: the gradient of layer {layer}"
        expect_close(parameter.grad, expected, what, tolerance=1e-6)
    dist.barrier()
    *sent, _ = link.completions()[before:]
    backward = [span for span in model.spans if span.name == "backward"]
    if len(sent) != len(buckets):
        raise Wrong(f"step {step}: {len(sent)} messages for {len(buckets)} buckets")
    sent.sort(key=lambda message: message.posted_s)
    sizes = [message.size_bytes for message in sent]
    expected_sizes = [sum(4 * p.numel() for p in bucket) for bucket in buckets]
    if sizes != expected_sizes:
        raise Wrong(f"step {step}: messages of {sizes} bytes, expected {expected_sizes}")
    if sent[0].posted_s > backward[-1].start_s:
        raise Wrong(f"step {step}: the first message is posted when backward is over")
    beside_s = (
        min(span.end_s, sent[0].done_s) - max(span.start_s, sent[0].posted_s) for span in backward
    )
    if max(beside_s) < 1e-3:
        raise Wrong(f"step {step}: no layer computes while the first message is under way")


@exercise("10-hook", ranks=True)
def hook(solution: Callable[[nn.Module], None]) -> None:
    """solution(model): hooks that average whatever is in .grad while model.sync is True."""
    with process_group(backend="gloo", timeout_s=4) as ranks, _joined():
        model = problems.make_mlp((64, 16, 10), dtype=torch.float64)
        solution(model)
        images, labels = (x[:24] for x in problems.digits(torch.float64).train)
        mine = problems.split((images, labels), ranks.rank, ranks.world_size)
        scale = ranks.world_size / 24
        with count_traffic() as traffic:
            for micro_batch in range(3):
                part = tuple(x[micro_batch::3] for x in mine)
                model.sync = micro_batch == 2
                (problems.classification_loss_sum(model, part) * scale).backward()
        whole = problems.make_mlp((64, 16, 10), dtype=torch.float64)
        (problems.classification_loss_sum(whole, (images, labels)) / 24).backward()
        expected = {name: parameter.grad for name, parameter in whole.named_parameters()}
        for name, parameter in model.named_parameters():
            expect_close(parameter.grad, expected[name], f"the gradient of {name}")
        found, most = traffic.collectives["all_reduce"], len(expected)
        if found > most:
            raise Wrong(f"{found} all-reduces for {most} parameters, expected no more")


Cost = Callable[[float], float]


@exercise("10-plan")
def plan(solution: Callable[[Sequence[int], Sequence[float], Cost], float]) -> None:
    """solution(sizes, ready_s, cost_s) -> the earliest end of any plan, in seconds. Local."""
    for name, (each, count) in {"few": (1, 5), "many": (2, 40)}.items():
        for latency_s in (0.0, 2e-3, 1e-1):
            sizes = [100_000 * (1 + (each * i) % 3) for i in range(count)]
            ready_s = list(itertools.accumulate(2e-3 * (1 + i % 4) for i in range(count)))
            link_s = Link(latency_s, 0.1, world_size=4)
            cuts = best_cuts(sizes, ready_s, 4, link_s)
            runs = list(itertools.pairwise([0, *cuts]))
            expected = step_s(
                [sum(sizes[a:b]) for a, b in runs], [ready_s[b - 1] for _, b in runs], 4, link_s
            )
            found = solution(sizes, ready_s, lambda size, of=link_s: of.ring_s(size, 4))
            what = f"{name} gradients, latency {1e3 * latency_s:g} ms: the earliest end"
            expect_close(found, expected, what, tolerance=1e-6)
