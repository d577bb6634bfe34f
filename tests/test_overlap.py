"""Overlap: its predicted time and bound, seen in timestamps, and measured on emulated links."""

import itertools
import random
from functools import partial

import pytest
import torch
import torch.distributed as dist
from predicted_plans import predicted_s

from helpers import cost_model, problems
from helpers.buckets import plan_buckets
from helpers.data_parallel import DistributedDataParallel
from helpers.launch import run_function
from helpers.link import Link
from helpers.process_group import process_group

FREE = Link(0.0, 1.0, world_size=2)  # 1 GB in 1 s: 2 rounds of half a tensor each
TORCH = torch.nn.parallel.DistributedDataParallel


def test_a_bucket_leaves_when_it_is_ready_and_the_link_is_free():
    sizes, ready_s = [1_000_000_000] * 3, [1.0, 1.5, 4.0]
    found = cost_model.transfers_s(sizes, ready_s, 2, FREE)
    assert found == [pytest.approx(pair) for pair in ((1, 2), (2, 3), (4, 5))]
    times = {"forward_s": 10.0, "backward_s": 4.0}
    assert cost_model.step_s(sizes, ready_s, 2, FREE, **times) == pytest.approx(15)
    assert cost_model.step_s([], [], 2, FREE, **times) == 14
    bound = cost_model.overlap_lower_bound_s(sizes, ready_s, 2, FREE, **times)
    assert bound == pytest.approx(15)
    assert cost_model.overlap_lower_bound_s([0], [1.0], 2, FREE, **times) == 14
    assert cost_model.best_cuts([], [], 2, FREE) == []


def test_a_link_of_its_own_world_size_prices_as_the_emulation_does():
    link = Link(1e-3, 0.1, world_size=8)
    ((start, end),) = cost_model.transfers_s([800_000], [0.0], 2, link)
    assert end - start == pytest.approx(link.ring_s(800_000, 2))
    assert cost_model.transfers_s([800_000], [0.5], 1, Link(1e-3, 0.1)) == [(0.5, 0.5)]


@pytest.mark.parametrize("function", ["transfers_s", "overlap_lower_bound_s", "best_cuts"])
@pytest.mark.parametrize(
    ("sizes", "ready_s", "says"),
    [
        ([1], [], "found 1 sizes and 0 times"),
        ([-1], [0.0], "sizes_bytes: found -1"),
        ([1], [float("nan")], "ready_s: found nan"),
        ([1], ["1"], "ready_s: found '1'"),
    ],
)
def test_what_cannot_be_priced_is_refused(function, sizes, ready_s, says):
    with pytest.raises(ValueError, match=says):
        getattr(cost_model, function)(sizes, ready_s, 2, FREE)


def test_nothing_beats_the_lower_bound():
    """Random buckets in random order, contiguous or not, on random links."""
    generator, closest = random.Random(4), 10.0
    for _ in range(300):
        link = Link(generator.choice((0, 1e-3, 1e-2)), generator.choice((0.05, 0.2)), world_size=4)
        sizes = [generator.choice((1_000, 50_000, 900_000)) for _ in range(7)]
        ready_s = list(itertools.accumulate(generator.choice((1e-4, 5e-3)) for _ in sizes))
        bound = cost_model.overlap_lower_bound_s(sizes, ready_s, 2, link)
        order = generator.sample(range(7), 7)
        cuts = [0, *sorted(generator.sample(range(1, 7), 2)), 7]
        buckets = [order[a:b] for a, b in itertools.pairwise(cuts)]
        took = cost_model.step_s(
            [sum(sizes[i] for i in b) for b in buckets],
            [max(ready_s[i] for i in b) for b in buckets],
            2,
            link,
        )
        assert bound <= took + 1e-7
        closest = min(closest, took / bound)
    assert closest < 1.01  # the control: it is a bound that some plans reach


# -- seen in timestamps ------------------------------------------------------------------------

SLOW = Link(15e-3, 1.0, world_size=2)
SIZES = [4_000, 8_000, 4_000]  # of three buckets of four layers


def three_buckets(parameters):
    return [parameters[:1], parameters[1:3], parameters[3:]]


def blocking(tensor, group=None, async_op=True):
    work = dist.all_reduce(tensor, group=group, async_op=True)
    work.wait()
    return work


def twice(tensor, group=None, async_op=True):
    dist.all_reduce(torch.ones(1), group=group, async_op=True)
    return dist.all_reduce(tensor, group=group, async_op=True)


WRAPS = {
    "ours": partial(DistributedDataParallel, plan=three_buckets),
    "torch": partial(TORCH, bucket_cap_mb=4_000 / 2**20),
    "blocks": partial(DistributedDataParallel, plan=three_buckets, all_reduce=blocking),
    "one more": partial(DistributedDataParallel, plan=three_buckets, all_reduce=twice),
    "forward order": partial(
        DistributedDataParallel, plan=lambda parameters: three_buckets(parameters)[::-1]
    ),
    "one bucket": partial(DistributedDataParallel, plan=lambda parameters: [parameters]),
}


def faults(step, sizes) -> set[str]:
    """What is wrong with a step: its messages, when the first is posted, what it runs beside."""
    backward = [span for span in step.spans if span.name == "backward"]
    sent = sorted(step.sent, key=lambda message: message.posted_s)
    found = set()
    if sizes is not None and [message.size_bytes for message in sent] != sizes:
        found.add("messages")
    if sent[0].posted_s > backward[-1].start_s:
        found.add("late")
    beside_s = [
        min(span.end_s, sent[0].done_s) - max(span.start_s, sent[0].posted_s) for span in backward
    ]
    if max(beside_s) < 1e-3:
        found.add("alone")
    return found


def watched(wraps):
    """Every rank must call this: the third step of each, when buckets have been planned anew."""
    with process_group(backend=SLOW, timeout_s=10):
        built = {
            name: (wrap(problems.make_sleeping(4, 4_000, forward_s=0, backward_s=6e-3)), None)
            for name, wrap in wraps.items()
        }
        return {name: steps[2] for name, steps in problems.time_steps(built).items()}


def test_overlap_order_and_count_are_seen_in_timestamps():
    for found in run_function(watched, WRAPS, nproc_per_node=2):
        sizes = {"torch": None}  # it may lay out others; ours are planned
        seen = {name: faults(step, sizes.get(name, SIZES)) for name, step in found.items()}
        assert seen == {
            "ours": set(),
            "torch": set(),
            "blocks": {"alone"},
            "one more": {"messages"},
            "forward order": {"late", "alone"},
            "one bucket": {"messages", "late", "alone"},
        }


# -- measured ----------------------------------------------------------------------------------

LAYERS, LAYER_BYTES, FORWARD_S, BACKWARD_S = 16, 250_000, 1e-3, 6e-3
LINKS = {
    "latency": Link(1e-3, 0.4, world_size=8),
    "balanced": Link(0.4e-3, 0.125, world_size=8),
    "bandwidth": Link(0.2e-3, 0.05, world_size=8),
}
READY_S = [BACKWARD_S * (layer + 1) for layer in range(LAYERS)]
#: A busy machine only ever adds, so the fastest step counts; it adds less to a slower emulation.
SLOW_MOTION = (1, 2, 4)


def wraps_of(link):
    plans = {
        "best cap": partial(plan_buckets, cap_bytes=best_cap(link) * LAYER_BYTES),
        "plan": partial(plan_buckets, link=link, ready_s=READY_S),
    }
    wraps = {name: partial(DistributedDataParallel, plan=plan) for name, plan in plans.items()}
    return {**wraps, "torch default": TORCH}


def best_cap(link) -> int:
    """Layers a bucket of the cap that the model prices lowest; the command measures a sweep."""

    def step_s(count):
        counts = [min(count, LAYERS - start) for start in range(0, LAYERS, count)]
        return predicted_s(counts, LAYER_BYTES, READY_S, link)

    return min(range(1, LAYERS + 1), key=step_s)


def timed(links, shape, slow_motion):
    """Every rank must call this: one step of all ways on each link, after two that plan."""
    found = {}
    for name, (link, wraps) in links.items():
        with process_group(backend=link.slowed(slow_motion), timeout_s=20):
            models = {way: wrap(problems.make_sleeping(**shape)) for way, wrap in wraps.items()}
            steps = problems.time_steps({way: (model, None) for way, model in models.items()})
            found[name] = {way: each[2:] for way, each in steps.items()}
    return found


def fastest(links, shape, is_reached):
    """The fastest step of each (link, way), in as many rounds as it takes to reach the bound."""
    best: dict[tuple[str, str], list[float]] = {}
    for factor in SLOW_MOTION:
        slowed = {**shape, "forward_s": factor * shape["forward_s"]}
        slowed["backward_s"] = factor * shape["backward_s"]
        by_rank = run_function(timed, links, slowed, factor, nproc_per_node=2)
        for name in links:
            of_link = [found[name] for found in by_rank]
            for way in of_link[0]:
                seconds = [s / factor for s in problems.step_seconds(of_link, way)]
                best.setdefault((name, way), []).extend(seconds)
        if is_reached({key: min(runs) for key, runs in best.items()}):
            break
    for (name, way), runs in best.items():
        print(f"{name:10} {way:14}", *(f"{1e3 * seconds:6.1f}" for seconds in runs), "ms")
    return {key: min(runs) for key, runs in best.items()}


def test_the_plan_is_within_5_percent_of_the_best_cap_on_three_links():
    def is_reached(best):
        return all(
            best[name, "plan"] <= 1.05 * min(best[name, "best cap"], best[name, "torch default"])
            for name in LINKS
        )

    links = {name: (link, wraps_of(link)) for name, link in LINKS.items()}
    shape = {
        "num_layers": LAYERS,
        "layer_bytes": LAYER_BYTES,
        "forward_s": FORWARD_S,
        "backward_s": BACKWARD_S,
    }
    best = fastest(links, shape, is_reached)
    for name in LINKS:
        ratio = best[name, "plan"] / best[name, "best cap"]
        print(f"{name}: plan / best cap = {ratio:.3f}")
    assert is_reached(best)
    better = [name for name in LINKS if best[name, "plan"] < 0.98 * best[name, "torch default"]]
    assert len(better) >= 2


def test_the_chapter_s_step_is_within_5_percent_of_its_lower_bound():
    link, shape = Link(0.5e-3, 0.1, world_size=8), {"forward_s": 4e-3, "backward_s": 8e-3}
    ready_s = [8e-3 * (layer + 1) for layer in range(24)]
    plan = partial(plan_buckets, link=link, ready_s=ready_s)
    bound = cost_model.overlap_lower_bound_s(
        [250_000] * 24, ready_s, 2, link, forward_s=0.096, backward_s=0.192
    )
    wraps = {"plan": partial(DistributedDataParallel, plan=plan)}
    best = fastest(
        {"chapter": (link, wraps)}, shape, lambda best: min(best.values()) < 1.05 * bound
    )
    print(f"{1e3 * best['chapter', 'plan']:.1f} ms, the lower bound is {1e3 * bound:.1f}")
    assert best["chapter", "plan"] < 1.05 * bound
