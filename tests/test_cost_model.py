"""Predicted costs: closed forms against a simulation of ports, a fitted link against its truth."""

import math
import random
from dataclasses import dataclass

import pytest

from helpers import cost_model
from helpers.cost_model import ALGORITHMS, all_reduce_s, choose, critical_path, schedule

WORLDS = (1, 2, 3, 4, 5, 6, 7, 8, 13, 16)


@dataclass(frozen=True)
class PlainLink:
    latency_s: float
    bandwidth_gb_per_s: float


def simulated_s(rounds, world_size, link):
    """Seconds on ports: a message starts when its sender has what it passes on, and both are free.

    Messages are served in the order in which they are posted.
    """
    has_s, out_s, in_s = ([0.0] * world_size for _ in range(3))
    for messages in rounds:
        ends = []
        for sender, receiver, size_bytes in messages:
            start_s = max(has_s[sender], out_s[sender], in_s[receiver])
            end_s = start_s + link.latency_s + size_bytes / (link.bandwidth_gb_per_s * 1e9)
            out_s[sender] = in_s[receiver] = end_s
            ends.append((receiver, end_s))
        for receiver, end_s in ends:
            has_s[receiver] = max(has_s[receiver], end_s)
    return max(has_s + out_s)


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_critical_path_is_what_ports_take(algorithm, world_size):
    for latency_s, gb_per_s in ((1.0, 1e-9), (0.0, 1e-9), (1.0, 1.0)):
        link = PlainLink(latency_s, gb_per_s)
        for size_bytes in (0, 1, world_size - 1, world_size + 1, 1000, 1024):
            rounds = schedule(algorithm, size_bytes, world_size)
            predicted_s = all_reduce_s(algorithm, size_bytes, world_size, link)
            assert predicted_s == pytest.approx(simulated_s(rounds, world_size, link), rel=1e-12)


def test_a_mutant_of_each_formula_is_seen_by_the_ports():
    link, size_bytes, world_size = PlainLink(1e-3, 1e-3), 1200, 6
    for algorithm in ALGORITHMS:
        rounds = schedule(algorithm, size_bytes, world_size)
        right_s = simulated_s(rounds, world_size, link)
        assert simulated_s(rounds[:-1], world_size, link) != pytest.approx(right_s)
        one_more = [*rounds, rounds[-1]]
        assert simulated_s(one_more, world_size, link) != pytest.approx(right_s)


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_schedule_leaves_every_rank_with_every_part(algorithm, world_size):
    """Whole tensors and no ring: a rank's set of summed ranks grows to all of them."""
    summed = [{rank} for rank in range(world_size)]
    for messages in schedule(algorithm, 1 << 20, world_size):
        before = [set(ranks) for ranks in summed]
        for sender, receiver, _ in messages:
            summed[receiver] |= before[sender]
    assert all(ranks == set(range(world_size)) for ranks in summed)


def test_messages_and_bytes_on_the_critical_path():
    size = 1200
    expected = {
        ("gather_broadcast", 4): (6, 6 * size),
        ("tree", 4): (4, 4 * size),
        ("tree", 5): (6, 6 * size),
        ("ring", 4): (6, 6 * size / 4),
        ("doubling", 4): (2, 2 * size),
        ("doubling", 6): (4, 4 * size),
        ("halving_doubling", 4): (4, 2 * size * 3 / 4),
        ("halving_doubling", 6): (6, 2 * size * 3 / 4 + 2 * size),
    }
    for (algorithm, world_size), (messages, sent_bytes) in expected.items():
        path = critical_path(algorithm, size, world_size)
        assert (path.messages, path.sent_bytes) == (messages, sent_bytes)
    for algorithm in ALGORITHMS:
        assert critical_path(algorithm, size, 1) == cost_model.CriticalPath(0, 0)
        assert all_reduce_s(algorithm, size, 1, PlainLink(1.0, 1.0)) == 0


def test_chunks_are_cut_between_elements():
    assert critical_path("ring", 40, 4, element_bytes=8) == cost_model.CriticalPath(6, 6 * 16)
    assert critical_path("ring", 40, 4).sent_bytes == 6 * 10
    assert critical_path("halving_doubling", 40, 4, element_bytes=8).sent_bytes == 2 * (24 + 16)


@pytest.mark.parametrize("world_size", WORLDS[1:])
def test_traffic_by_rank(world_size):
    size, n = 240 * world_size, world_size
    p = 1 << (n.bit_length() - 1)
    rounds = p.bit_length() - 1
    ring = cost_model.traffic_per_rank("ring", size, n)
    assert ring == [(2 * (n - 1), 2 * (n - 1) * size // n)] * n
    root, *others = cost_model.traffic_per_rank("gather_broadcast", size, n)
    assert root == (n - 1, (n - 1) * size)
    assert others == [(1, size)] * (n - 1)
    tree = cost_model.traffic_per_rank("tree", size, n)
    assert sum(messages for messages, _ in tree) == 2 * (n - 1)
    assert tree[0][0] == math.ceil(math.log2(n))
    folding = [rank < n - p for rank in range(p)]  # sends the sum back to the rank folded into it
    doubling = cost_model.traffic_per_rank("doubling", size, n)
    assert doubling[:p] == [(rounds + fold, (rounds + fold) * size) for fold in folding]
    assert doubling[p:] == [(1, size)] * (n - p)
    halving = cost_model.traffic_per_rank("halving_doubling", size, n)
    if size % p == 0:
        expected = 2 * size * (p - 1) // p
        assert halving[:p] == [(2 * rounds + fold, expected + fold * size) for fold in folding]
    assert halving[p:] == [(1, size)] * (n - p)


def test_the_cheapest_algorithm_is_chosen():
    fast_start, slow_start = PlainLink(1e-6, 1.0), PlainLink(10e-3, 1.0)
    assert choose(1 << 26, 2, fast_start) == "doubling"
    assert choose(1 << 26, 4, fast_start) == "halving_doubling"
    assert choose(1 << 26, 6, fast_start) == "ring"
    assert choose(1 << 10, 8, slow_start) == "doubling"
    assert choose(1 << 10, 3, slow_start) == "doubling"
    assert choose(1 << 22, 8, slow_start) in ("doubling", "halving_doubling")
    for world_size in WORLDS:
        for size_bytes in (0, 1, 1024, 1 << 24):
            name = choose(size_bytes, world_size, slow_start)
            costs = [all_reduce_s(each, size_bytes, world_size, slow_start) for each in ALGORITHMS]
            assert costs[ALGORITHMS.index(name)] == min(costs)


def test_of_equal_costs_the_one_with_fewest_messages_is_chosen():
    no_latency = PlainLink(0.0, 1.0)
    assert choose(1 << 20, 2, no_latency) == "doubling"  # ring, halving_doubling send as much
    assert choose(1 << 20, 4, no_latency) == "halving_doubling"
    assert choose(1 << 20, 1, no_latency) == "gather_broadcast"  # nothing to send: the first


def test_what_the_planner_of_a_step_needs():
    """400 MB of gradients on 8 GB/s among 4: 75 ms, so 15 micro-batches of 5 ms hide it."""
    comm_s = all_reduce_s("ring", 400_000_000, 4, PlainLink(0.0, 8.0))
    assert comm_s == pytest.approx(75e-3)
    assert math.ceil(comm_s / 5e-3 - 1e-9) == 15


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("star", 8, 2), "algorithm: found 'star', expected one of gather_broadcast"),
        (("ring", 8, 0), "world_size: found 0"),
        (("ring", 8, 2.0), "world_size: found 2.0"),
        (("ring", -8, 2), "size_bytes: found -8"),
        (("ring", 8.5, 2), "size_bytes: found 8.5"),
        (("ring", math.nan, 2), "size_bytes: found nan"),
        (("tree", math.inf, 2), "size_bytes: found inf"),
        (("tree", "8", 2), "size_bytes: found '8'"),
        (("tree", 8, True), "world_size: found True"),
    ],
)
def test_unusable_arguments_are_named(arguments, message):
    for function in (schedule, critical_path, cost_model.traffic_per_rank):
        with pytest.raises(ValueError, match=message):
            function(*arguments)
    for size_bytes in (math.nan, math.inf):
        with pytest.raises(ValueError, match="size_bytes: found"):
            cost_model.choose(size_bytes, 4, PlainLink(1e-3, 1.0))
    with pytest.raises(ValueError, match="expected a multiple of 8"):
        critical_path("ring", 12, 2, element_bytes=8)


def test_algorithm_and_bus_bandwidth():
    assert cost_model.algorithm_bandwidth_gb_per_s(1e9, 0.1) == pytest.approx(10)
    assert cost_model.bus_bandwidth_gb_per_s(1e9, 0.1, 4) == pytest.approx(15)
    assert cost_model.bus_bandwidth_gb_per_s(1e9, 0.1, 1) == 0
    assert cost_model.algorithm_bandwidth_gb_per_s(0, 0.1) == 0
    # A ring on a link without latency shows exactly the link.
    for world_size in (2, 3, 8):
        seconds = all_reduce_s("ring", 24_000_000, world_size, PlainLink(0.0, 2.5))
        found = cost_model.bus_bandwidth_gb_per_s(24_000_000, seconds, world_size)
        assert found == pytest.approx(2.5)
    # Each rank sends its tensor once and receives the sum once, on links of 450 GB/s: above 450.
    seconds = 1e9 / 450e9
    assert cost_model.bus_bandwidth_gb_per_s(1e9, seconds, 8) > 450
    for size_bytes, seconds, world_size in ((-1, 1, 2), (1, 0, 2), (1, 1, 0), (1, math.nan, 2)):
        with pytest.raises(ValueError, match="expected"):
            cost_model.bus_bandwidth_gb_per_s(size_bytes, seconds, world_size)


# fit_link


def samples_of(link, *, noise=0.0, seed=0, largest_bytes=1 << 22):
    randomly = random.Random(seed)
    samples = []
    for algorithm in ("ring", "doubling", "halving_doubling"):
        for size_bytes in (1 << 10, 1 << 14, 1 << 18, largest_bytes):
            path = critical_path(algorithm, size_bytes, 4)
            seconds = path.seconds(link) * (1 + randomly.uniform(-noise, noise))
            samples.append((path.messages, path.sent_bytes, seconds))
    return samples


LINKS = [PlainLink(2e-3, 0.1), PlainLink(5e-6, 25.0), PlainLink(0.0, 1.0), PlainLink(0.5, 1e-3)]


@pytest.mark.parametrize("link", LINKS)
def test_the_fit_recovers_a_link_exactly(link):
    fitted = cost_model.fit_link(samples_of(link))
    assert fitted.latency_s == pytest.approx(link.latency_s, rel=1e-6, abs=1e-12)
    assert fitted.bandwidth_gb_per_s == pytest.approx(link.bandwidth_gb_per_s, rel=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_the_fit_recovers_a_noisy_link_within_5_percent(seed):
    link = LINKS[0]
    fitted = cost_model.fit_link(samples_of(link, noise=0.03, seed=seed))
    assert fitted.latency_s == pytest.approx(link.latency_s, rel=0.05)
    assert fitted.bandwidth_gb_per_s == pytest.approx(link.bandwidth_gb_per_s, rel=0.05)


def plain_latency_s(samples):
    """A mutant: it minimises seconds squared, so that the largest samples rule."""
    terms = [(m * m, m * b, b * b, m * s, b * s) for m, b, s in samples]
    mm, mb, bb, ms, bs = (math.fsum(column) for column in zip(*terms, strict=True))
    return (ms * bb - bs * mb) / (mm * bb - mb * mb)


def test_plain_least_squares_misses_the_latency():
    link = LINKS[0]
    windows = [samples_of(link, noise=0.03, seed=seed, largest_bytes=1 << 26) for seed in range(5)]
    plain = [abs(plain_latency_s(samples) / link.latency_s - 1) for samples in windows]
    fitted = [abs(cost_model.fit_link(samples).latency_s / 2e-3 - 1) for samples in windows]
    assert max(fitted) < 0.05 < 0.2 < max(plain)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "found 0, expected at least 2"),
        ([(1, 1024, 1e-3)], "found 1, expected at least 2"),
        ([(1, 1024, 1e-3), (2, 2048, 2e-3), (4, 4096, 4.1e-3)], "messages of one size"),
        ([(0, 1024, 1e-3), (0, 2048, 2e-3)], "messages of one size"),
        ([(1, 1024, 1e-3), (1, 2048, 0.0)], r"samples\[1\].*\(1, 2048, 0\)"),
        ([(1, 1024, 1e-3), (1, 2048, math.inf)], r"samples\[1\]"),
        ([(1, 1024, 1e-3), (1, -1, 1.0)], r"samples\[1\]"),
        ([(1, 1000, 1e-3), (1, 2000, 4e-3)], "latency comes out as -0.002 s"),
        ([(1, 1000, 2e-3), (1, 2000, 1e-3)], "1 / bandwidth comes out as -"),
        ([(1, 1000, 1e-3), (1, 2000, 1e-3)], "1 / bandwidth comes out as"),
    ],
)
def test_samples_that_fit_no_link_are_refused(samples, message):
    with pytest.raises(ValueError, match=message):
        cost_model.fit_link(samples)
