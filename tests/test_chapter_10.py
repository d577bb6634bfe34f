"""The figures of chapter 10: at the ends of their sliders, and true to the numbers they get."""

import itertools

import pytest

from helpers import cost_model
from helpers.explore import explore
from helpers.figures import buckets as figures
from helpers.figures import to_svg
from helpers.link import Completion, Link
from helpers.problems import Span, Step

SLOW = Link(0.5e-3, 0.1, world_size=8)
SHAPE = (250_000, 4e-3, 8e-3, SLOW)


def ends_ms(lanes):
    return [round(1e3 * max(end for _, end, _ in parts), 1) for parts in lanes]


def test_lanes_of_the_ladder_are_the_chapter_s_numbers():
    naive = figures.predicted_lanes([1] * 24, *SHAPE, overlap=False)
    flat = figures.predicted_lanes([24], *SHAPE)
    after = figures.predicted_lanes([4] * 6, *SHAPE, overlap=False)
    during = figures.predicted_lanes([4] * 6, *SHAPE)
    assert [ends_ms(lanes)[1] for lanes in (naive, flat, after, during)] == [561, 400, 435, 312.5]
    assert {ends_ms(lanes)[0] for lanes in (naive, flat, after, during)} == {288.0}
    assert figures.hidden_share(after) == figures.hidden_share(flat) == 0
    assert figures.hidden_share(during) == pytest.approx(5 / 6)


def step(sent_at):
    spans = [Span("forward", 0, 10.0, 10.1), Span("forward", 1, 10.1, 10.2)]
    spans += [Span("backward", 1, 10.2, 10.4), Span("backward", 0, 10.4, 10.6)]
    sent = [Completion("all_reduce", 4, at, at, at + 0.1, at + 0.1, "0") for at in sent_at]
    return Step(10.0, 10.8, spans, sent)


def test_measured_lanes_match_layers_and_messages_by_bucket():
    compute, transfers = figures.measured_lanes(step((10.4, 10.6)), [1, 1])
    assert [bucket for *_, bucket in compute] == [-1, -1, 0, 1]
    assert [(round(a, 3), round(b, 3), k) for a, b, k in transfers] == [
        (0.4, 0.5, 0),
        (0.6, 0.7, 1),
    ]
    assert figures.hidden_share((compute, transfers)) == pytest.approx(0.5)
    _, transfers = figures.measured_lanes(step((10.6, 10.7)), [1, 1], reverse=True)
    assert [(round(a, 3), k) for a, _, k in transfers] == [(0.7, 0), (0.6, 1)]


@pytest.mark.parametrize(
    ("latency_ms", "bandwidth"), list(itertools.product((0.05, 2.0), (50, 400)))
)
def test_the_exploration_at_both_ends_of_its_sliders(latency_ms, bandwidth):
    titles = {
        layers: figures.overlap_model(latency_ms, bandwidth, layers).axes[0].get_title()
        for layers in (1, 2, 24, "best")
    }
    steps = {layers: int(text.split("step ")[1].split(" ms")[0]) for layers, text in titles.items()}
    assert steps["best"] == min(steps.values())
    assert titles[24].startswith("1 bucket, ")
    assert titles[1].startswith("24 buckets")
    link = Link(latency_ms * 1e-3, bandwidth * 1e-3, world_size=8)
    flat_s = 0.288 + cost_model.all_reduce_s("ring", 6_000_000, 8, link)
    assert steps[24] == round(1e3 * flat_s)


def test_every_figure_draws_itself_the_same_twice():
    lanes = {"during": figures.predicted_lanes([4] * 6, *SHAPE)}
    caps = {250_000: 0.377, 500_000: 0.304, 6_000_000: 0.4}
    makers = [
        lambda: figures.timeline(lanes, 0.3),
        lambda: figures.bucket_sizes(caps, {cap: [s, 1.1 * s] for cap, s in caps.items()}, 0.3),
        lambda: figures.overlap_model(0.5, 100, 4),
    ]
    for make in makers:
        assert to_svg(make(), "alt") == to_svg(make(), "alt")


def test_points_are_the_fastest_runs_and_the_line_is_the_prediction():
    figure = figures.bucket_sizes({250_000: 0.4, 500_000: 0.3}, {500_000: [0.35, 0.31]}, 0.29)
    line, bar, point, bound = figure.axes[0].lines
    assert list(line.get_ydata()) == [400, 300]
    assert list(bar.get_ydata()) == [310, 350]
    assert list(point.get_xdata()) == [0.5]
    assert list(bound.get_ydata()) == [290, 290]


def test_frames_are_light():
    found = explore(
        figures.overlap_model,
        latency_ms=[2.0],
        bandwidth_mb_per_s=[50],
        layers_per_bucket=[1, "best"],
    )
    assert max(len(frame) for frame in found.frames) < 10_000
