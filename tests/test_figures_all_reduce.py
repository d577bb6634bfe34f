"""The figures of chapter 08: a model of each algorithm that sums right, drawn the same twice."""

from itertools import chain

import pytest
from matplotlib.patches import Rectangle

from helpers import cost_model
from helpers.figures import all_reduce, to_svg
from helpers.figures.all_reduce import Transfer, holdings, schedule
from helpers.figures.all_reduce.names import apart
from helpers.link import LINKS

WORLDS = range(1, 9)


@pytest.mark.parametrize("algorithm", cost_model.ALGORITHMS)
@pytest.mark.parametrize("world_size", WORLDS)
def test_every_rank_ends_with_every_number_once(algorithm, world_size):
    everyone = frozenset(range(world_size))
    last = holdings(algorithm, world_size)[-1]
    assert all(held == everyone for row in last for held in row)


@pytest.mark.parametrize("algorithm", cost_model.ALGORITHMS)
@pytest.mark.parametrize("world_size", WORLDS)
def test_steps_are_those_that_the_cost_model_prices(algorithm, world_size):
    """The same messages between the same ranks, and as many chunks' bytes; one port a rank."""
    steps, num_chunks = schedule(algorithm, world_size)
    mine = [
        sorted((each.sender, each.receiver, len(each.chunks)) for each in step) for step in steps
    ]
    rounds = [sorted(step) for step in cost_model.schedule(algorithm, num_chunks, world_size)]
    if algorithm == "gather_broadcast":  # priced as two rounds of messages into and out of a port
        half = world_size - 1
        parts = (mine[:half], mine[half:]) if half else ()
        mine = [sorted(chain.from_iterable(part)) for part in parts]
    assert mine == [list(map(tuple, step)) for step in rounds]
    for step in steps:
        assert len({each.sender for each in step}) == len(step)
        assert len({each.receiver for each in step}) == len(step)


def with_steps(monkeypatch, algorithm, steps):
    schedules = {**schedule.__globals__["_SCHEDULES"], algorithm: lambda n: (steps, 4)}
    monkeypatch.setitem(schedule.__globals__, "_SCHEDULES", schedules)
    return holdings(algorithm, 4)


def test_a_ring_off_by_one_chunk_adds_a_number_twice(monkeypatch):
    """Negative control: the second step passes on the chunk that the first one has passed on."""
    steps, _ = schedule("ring", 4)
    late = [Transfer(t.sender, t.receiver, ((t.chunks[0] + 1) % 4,), t.adds) for t in steps[1]]
    with pytest.raises(ValueError, match=r"adds \[\d\] twice"):
        with_steps(monkeypatch, "ring", [steps[0], late, *steps[2:]])


def test_a_tree_that_forgets_a_child_lacks_its_numbers(monkeypatch):
    """Negative control."""
    steps, _ = schedule("tree", 4)
    last = with_steps(monkeypatch, "tree", [steps[0][:1], *steps[1:]])[-1]
    assert {held for row in last for held in row[:1]} == {frozenset({0, 1, 2})}


@pytest.mark.parametrize(("world_size", "step"), [(2, 0), (2, 8), (5, 0), (5, 4), (5, 8)])
def test_the_ring_shows_every_chunk_of_every_rank(world_size, step):
    figure = all_reduce.ring_step(world_size, step)
    axes = figure.axes[0]
    boxes = [each for each in axes.get_children() if isinstance(each, Rectangle)][:-1]
    assert len(boxes) == world_size**2  # the last one is the background
    texts = [text.get_text() for text in axes.texts if text.get_text()]
    held = holdings("ring", world_size)[min(step, 2 * world_size - 2)]
    whole = sum(len(ranks) == world_size for row in held for ranks in row)
    assert texts.count("sum") == whole
    changed = [box for box in boxes if box.get_linewidth() > 2]
    assert len(changed) == (world_size if 0 < step <= 2 * world_size - 2 else 0)


@pytest.mark.parametrize("algorithm", ["tree", "doubling", "gather_broadcast"])
@pytest.mark.parametrize(("world_size", "step"), [(1, 0), (2, 1), (5, 2), (7, 2), (8, 6)])
def test_whole_tensors_show_every_rank_and_what_it_sent(algorithm, world_size, step):
    axes = all_reduce.tensor_step(algorithm, world_size, step).axes[0]
    steps = schedule(algorithm, world_size)[0][:step]
    sent = [sum(each.sender == rank for s in steps for each in s) for rank in range(world_size)]
    texts = [text.get_text() for text in axes.texts if text.get_position()[0] >= 0]
    assert texts[1::3] == list(map(str, range(world_size)))
    assert texts[2::3] == list(map(str, sent))


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match="schedule: found 'star' on 2 ranks"):
        schedule("star", 2)
    with pytest.raises(ValueError, match="ring_step: found step 0 of 1 ranks"):
        all_reduce.ring_step(1, 0)
    with pytest.raises(ValueError, match="tensor_step: found 'ring'"):
        all_reduce.tensor_step("ring", 4, 0)


def test_predictions_are_lines_and_measurements_points():
    link = LINKS["ethernet_1g"]
    measured = {"ring": {1_000: (2e-3, 3e-3, 0.0), 100_000: (2e-2, 3e-2, 0.0)}}
    figure = all_reduce.seconds_against_size({"slow": link}, 4, {"slow": measured}, 3)
    *_, line, leader = figure.axes[0].get_lines()
    assert leader.get_ydata()[0] == line.get_ydata()[-1]
    expected = 1e3 * cost_model.all_reduce_s("ring", 100_000, 4, link)
    assert line.get_ydata()[-1] == pytest.approx(expected)
    assert line.get_linestyle() == "-."
    (dots,) = [each for each in figure.axes[0].get_lines() if each.get_marker() == "^"]
    assert (list(dots.get_ydata()), dots.get_linestyle()) == ([2.0, 20.0], "None")
    assert "fastest and range of 3" in figure.axes[0].get_xlabel()


def test_own_costs_are_pale_bars_on_the_predictions():
    link = LINKS["ethernet_1g"]
    measured = {"ring": {1_000: (2e-3, 3e-3, 1e-3), 100_000: (2e-2, 3e-2, 2e-3)}}
    figure = all_reduce.seconds_against_size({"slow": link}, 4, {"slow": measured}, 3)
    bars = [line for line in figure.axes[0].get_lines() if line.get_alpha()]
    for bar, (size, (*_, own_s)) in zip(bars, measured["ring"].items(), strict=True):
        line_s = cost_model.all_reduce_s("ring", size, 4, link)
        assert list(bar.get_xdata()) == [size, size]
        assert list(bar.get_ydata()) == pytest.approx([1e3 * line_s, 1e3 * (line_s + own_s)])


def test_names_stand_apart_in_the_order_of_their_lines():
    """Ends that are equal but for rounding are named in the order of the alphabet."""
    assert apart([0.0, 5.0], 1.0) == [0.0, 5.0]
    assert apart([0.0, 0.0, 0.1, 5.0], 1.0) == pytest.approx(
        [-0.9667, 0.0333, 1.0333, 5.0], abs=1e-3
    )
    figure = all_reduce.seconds_against_size({"slow": LINKS["ethernet_1g"]}, 2, {}, 0)
    texts = figure.axes[0].texts
    names = [text.get_text() for text in texts]
    assert names == ["doubling", "halving-doubling", "ring", "gather-broadcast", "tree"]
    heights = [text.xy[1] for text in texts]
    assert heights == sorted(heights)


def stars(measured):
    link = LINKS["ethernet_100g"]
    figure = all_reduce.seconds_against_size({"link": link}, 4, {"link": measured}, 1)
    lines = [line for line in figure.axes[0].get_lines() if line.get_marker() == "*"]
    return {line.get_markerfacecolor() != "none": line.get_xdata()[0] for line in lines}


def points(algorithm, sizes, factor=1.0):
    link = LINKS["ethernet_100g"]
    costs_s = [factor * cost_model.all_reduce_s(algorithm, size, 4, link) for size in sizes]
    return {size: (cost_s, cost_s, 0.0) for size, cost_s in zip(sizes, costs_s, strict=True)}


def test_stars_mark_where_the_best_changes_predicted_and_measured():
    """Of doubling and halving-doubling on four ranks: at 4 x latency x bandwidth."""
    sizes, predicted = (44_800, 1_400_000), 4 * 14e-6 * 12.5e9
    pair = {name: points(name, sizes) for name in ("doubling", "halving_doubling")}
    found = stars(pair)
    assert found[False] == pytest.approx(predicted, rel=0.02)  # a step of the drawn sizes
    assert found[True] == pytest.approx(predicted, rel=1e-6)
    assert stars({**pair, "doubling": points("doubling", sizes[:1])}).keys() == {False}
    slow = {**pair, "doubling": points("doubling", sizes, factor=1.1)}
    assert stars(slow)[True] < 0.9 * predicted


def test_lines_that_do_not_cross_are_refused():
    ring, tree = (points(name, (1_000, 100_000)) for name in ("ring", "tree"))
    assert all_reduce.crossing(ring, tree) > 0
    with pytest.raises(ValueError, match="do not cross"):
        all_reduce.crossing(tree, points("tree", (1_000, 100_000), factor=1.1))
    with pytest.raises(ValueError, match="found one size, 1000 bytes"):
        all_reduce.crossing(tree, points("ring", (1_000,)))


def test_every_figure_draws_itself_the_same_twice_and_fits_a_phone():
    link = LINKS["ethernet_1g"]
    makers = [
        lambda: all_reduce.ring_step(4, 2),
        lambda: all_reduce.tensor_step("doubling", 7, 2),
        lambda: all_reduce.chunks_by_step("halving_doubling", 4),
        lambda: all_reduce.ring_terms(link, 1_000_000, (2, 4, 64)),
        lambda: all_reduce.seconds_against_size({"slow": link}, 4, {}, 0),
    ]
    for make in makers:
        assert to_svg(make(), "alt") == to_svg(make(), "alt")
        assert make().get_size_inches()[0] <= 5
