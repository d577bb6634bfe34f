"""What operations on a link cost, and when ports are free: the model alone, without processes."""

import math
import pickle

import numpy as np
import pytest

from helpers import host_memory
from helpers.link import LINKS, SOURCES, Link
from helpers.link.model import RING_STEPS
from helpers.link.schedule import Operation, Schedule


def schedule(world_size: int = 4) -> Schedule:
    return Schedule(host_memory.share(Schedule.num_bytes(world_size)), world_size)


def message(source: int, target: int, cost_s: float, count: int = 0) -> Operation:
    return Operation(f"{count}: {source} to {target}", 2, (source,), (target,), cost_s)


def post(times: Schedule, operation: Operation, *posted_s: float) -> tuple[float, float]:
    """All ends post at these moments; all read, and read the same."""
    rows = [times.arrive(operation, moment_s) for moment_s in posted_s]
    [found] = {times.due(row, operation, timeout_s=1) for row in rows}
    return found


def test_prices_by_hand():
    link = Link(2e-3, 0.5)
    assert link.message_s(1_000_000) == pytest.approx(2e-3 + 2e-3)
    assert link.ring_s(4_000_000, 4) == pytest.approx(6 * (2e-3 + 2e-3))
    expected = {
        "all_reduce": 6 * 4e-3, "reduce_scatter": 3 * 4e-3, "all_gather": 3 * 4e-3,
        "all_to_all": 3 * 4e-3, "gather": 3 * 4e-3, "scatter": 3 * 4e-3,
        "broadcast": 3 * 2e-3 + 8e-3, "reduce": 3 * 2e-3 + 8e-3,
    }  # fmt: skip
    for name, seconds in expected.items():
        assert link.collective_s(name, 4_000_000, 4) == pytest.approx(seconds), name
    assert link.collective_s("barrier", 0, 4) == pytest.approx(6 * 2e-3)
    assert expected.keys() | {"barrier"} == RING_STEPS.keys()


def test_one_rank_costs_nothing_and_infinite_bandwidth_only_latency():
    for name in RING_STEPS:
        assert Link(1.0, 1.0).collective_s(name, 1e9, 1) == 0
        assert Link(0.0, math.inf).collective_s(name, 1e9, 4) == 0
    assert Link(1e-3, math.inf).message_s(1e12) == 1e-3


def test_world_size_prices_collectives_and_not_messages():
    link = Link(1e-3, 1.0, world_size=64)
    assert link.ring_s(64e6, 2) == Link(1e-3, 1.0).ring_s(64e6, 64)
    assert link.message_s(64e6) == Link(1e-3, 1.0).message_s(64e6)


def test_slowed_stretches_all_alike_and_says_so():
    link = Link(1e-3, 1.0, slow_ranks={1: 3}, stall_probability=0.5, stall_s=0.1)
    slow = link.slowed(10).slowed(2)
    assert slow.message_s(1e6) == pytest.approx(20 * link.message_s(1e6))
    assert slow.stall_s == pytest.approx(2.0)
    assert slow.real_s(slow.ring_s(1e6, 4)) == pytest.approx(link.ring_s(1e6, 4))
    assert slow.slowdown([0, 1]) == 3
    assert "slow motion, 20 times" in str(slow)
    assert "slow motion" not in str(link)
    assert str(link).startswith("emulated link: 1 ms + size / 1 GB/s, rank 1 3 times slower")


def test_stalls_are_the_same_on_every_run_and_as_frequent_as_said():
    link = Link(1e-3, 1.0, stall_probability=0.2, stall_s=0.5, seed=3)
    drawn = [link.stall_of(f"message {i}") for i in range(2000)]
    assert drawn == [link.stall_of(f"message {i}") for i in range(2000)]
    assert set(drawn) == {0.0, 0.5}
    assert 0.16 < sum(map(bool, drawn)) / len(drawn) < 0.24
    other = Link(1e-3, 1.0, stall_probability=0.2, stall_s=0.5, seed=4)
    assert drawn != [other.stall_of(f"message {i}") for i in range(2000)]


@pytest.mark.parametrize(
    ("arguments", "options", "named"),
    [
        ((-1e-3, 1.0), {}, "latency_s"),
        ((math.nan, 1.0), {}, "latency_s"),
        ((1e-3, 0.0), {}, "bandwidth_gb_per_s"),
        ((1e-3, -1.0), {}, "bandwidth_gb_per_s"),
        ((1e-3, 1.0, 0), {}, "world_size"),
        ((1e-3, 1.0, 2.5), {}, "world_size"),
        ((1e-3, 1.0), {"slow_ranks": {0: 0.5}}, "slow_ranks"),
        ((1e-3, 1.0), {"slow_ranks": {-1: 2}}, "slow_ranks"),
        ((1e-3, 1.0), {"slow_ranks": {True: 2}}, "slow_ranks"),
        ((1e-3, 1.0), {"slow_ranks": {1: "x"}}, "slow_ranks"),
        ((1e-3, 1.0), {"slow_ranks": [1]}, "slow_ranks"),
        (("a", 1.0), {}, "latency_s"),
        ((1e-3, None), {}, "bandwidth_gb_per_s"),
        ((1e-3, 1.0, True), {}, "world_size"),
        ((1e-3, 1.0, "2"), {}, "world_size"),
        ((1e-3, 1.0), {"seed": 0.5}, "seed"),
        ((1e-3, 1.0), {"stall_probability": 1.5}, "stall_probability"),
        ((1e-3, 1.0), {"stall_s": -1}, "stall_s"),
    ],
)
def test_what_is_out_of_range_is_named(arguments, options, named):
    with pytest.raises(ValueError, match=f"{named}: found .*expected"):
        Link(*arguments, **options)


@pytest.mark.parametrize(
    ("method", "arguments", "found"),
    [
        ("slowed", (0,), "factor: found 0"),
        ("slowed", ("2",), "factor: found '2'"),
        ("collective_s", ("foo", 8, 2), "name: found 'foo', expected one of all_reduce, "),
        ("collective_s", ("all_reduce", 8, 0), "world_size: found 0, expected 1 or more"),
        ("ring_s", (8, True), "world_size: found True"),
        ("ring_s", (8, 2.5), "world_size: found 2.5"),
        ("ring_s", (math.nan, 2), "size_bytes: found nan, expected bytes, 0 or more"),
        ("collective_s", ("broadcast", -8, 2), "size_bytes: found -8"),
        ("message_s", (math.inf,), "size_bytes: found inf"),
        ("message_s", ("8",), "size_bytes: found '8'"),
    ],
)
def test_methods_refuse_nonsense_by_name(method, arguments, found):
    with pytest.raises(ValueError, match=found):
        getattr(Link(1e-3, 1.0), method)(*arguments)


def test_links_are_equal_by_value_travel_and_hash():
    link = Link(1e-3, 1.0, slow_ranks={1: 3})
    assert link == pickle.loads(pickle.dumps(link)) == Link(1e-3, 1.0, slow_ranks={1: 3.0})
    assert hash(link) == hash(Link(1e-3, 1.0, slow_ranks={1: 3}))


def test_links_of_equal_numbers_are_told_alike():
    numbers = Link(np.float64(2), np.float32(1), np.int64(4), slow_ranks={np.int64(1): 3}, seed=0)
    plain = Link(2, 1, 4, slow_ranks={1: 3.0})
    assert repr(numbers) == repr(plain)
    assert {type(plain.latency_s), type(plain.bandwidth_gb_per_s)} == {float}
    assert [(type(r), type(f)) for r, f in numbers.slow_ranks.items()] == [(int, float)]


def test_every_preset_has_a_source_and_faster_ones_come_first():
    assert LINKS.keys() == SOURCES.keys()
    speeds = [link.bandwidth_gb_per_s for link in LINKS.values()]
    assert speeds[0] == max(speeds)
    assert speeds[-1] == min(speeds)


def test_a_message_starts_when_both_ends_have_posted():
    assert post(schedule(), message(0, 1, 5.0), 10.0, 12.0) == (12.0, 17.0)
    assert post(schedule(), message(0, 1, 5.0), 12.0, 10.0) == (12.0, 17.0)


def test_ports_are_full_duplex_and_take_one_message_at_a_time():
    times = schedule()
    assert post(times, message(0, 1, 5.0), 10.0, 10.0) == (10.0, 15.0)
    assert post(times, message(1, 0, 5.0), 10.0, 10.0) == (10.0, 15.0)  # the other direction
    assert post(times, message(2, 1, 5.0), 10.0, 10.0) == (15.0, 20.0)  # into the same port
    assert post(times, message(0, 3, 5.0), 10.0, 10.0) == (15.0, 20.0)  # out of the same port
    assert post(times, message(3, 2, 5.0), 10.0, 10.0) == (10.0, 15.0)  # others are free


def test_a_collective_waits_for_all_and_holds_all():
    times = schedule(3)
    everyone = Operation("all", 3, (0, 1, 2), (0, 1, 2), 4.0)
    assert post(times, message(0, 1, 5.0), 10.0, 10.0) == (10.0, 15.0)
    assert post(times, everyone, 10.0, 11.0, 12.0) == (15.0, 19.0)
    assert post(times, message(2, 0, 1.0), 12.0, 12.0) == (19.0, 20.0)


def test_first_matched_first_served_without_a_deadlock_by_order():
    """0 posts to 1, then to 2; only 2 receives. The first must not hold the second up."""
    times = schedule()
    first, second = message(0, 1, 5.0), message(0, 2, 5.0)
    waiting = times.arrive(first, 10.0)
    assert post(times, second, 10.0, 10.0) == (10.0, 15.0)
    other = times.arrive(first, 11.0)
    assert {times.due(row, first, 1) for row in (waiting, other)} == {(15.0, 20.0)}


def test_an_end_that_never_comes_is_a_named_timeout():
    times = schedule()
    row = times.arrive(message(0, 1, 5.0), 10.0)
    with pytest.raises(TimeoutError, match=r"0 to 1: 1 of 2 .* after 0.05 s"):
        times.due(row, message(0, 1, 5.0), timeout_s=0.05)


def test_rows_are_used_again_and_a_full_table_says_so(monkeypatch):
    monkeypatch.setattr("helpers.link.schedule.ROWS", 8)
    times = schedule(2)
    for count in range(20):
        post(times, message(0, 1, 1.0, count), 0.0, 0.0)
    for count in range(8):
        times.arrive(message(0, 1, 1.0, count), 0.0)
    with pytest.raises(RuntimeError, match="8 operations wait"):
        times.arrive(message(0, 1, 1.0, 8), 0.0)
