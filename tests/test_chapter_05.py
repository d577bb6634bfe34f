"""The figures of chapter 05: at the ends of their sliders, and true to the numbers they get."""

import itertools

import pytest

from helpers.figures import data_parallel as figures
from helpers.figures import to_svg

TIMES = {1: 0.066, 2: 0.036, 4: 0.020}
SPEED = {
    n: {
        f"{how} {kind}": {"median_s": s, "p10_s": 0.9 * s, "p90_s": 1.2 * s}
        for how in ("emulated", "computed")
        for kind, s in (("strong", time_s), ("weak", 0.066), ("r", 0.002))
    }
    for n, time_s in TIMES.items()
}
ERRORS = {"none": (0.0, 1e-16, 0.0), "sum for mean": (4e-16, 3.0, 0.0), "odd": (0.01, 0.3, 0.02)}


@pytest.mark.parametrize(
    ("compute_ms", "all_reduce_ms", "batch"),
    list(itertools.product((0.1, 10), (0.5, 100), (32, 256))),
)
def test_the_exploration_at_both_ends_of_its_sliders(compute_ms, all_reduce_ms, batch):
    figure = figures.scaling_model(compute_ms, all_reduce_ms, batch)
    _, _, strong, weak = (line.get_ydata() for line in figure.axes[0].lines)
    total = compute_ms * batch
    assert strong[0] == weak[0] == 1
    assert weak[-1] == pytest.approx(64 * total / (total + all_reduce_ms))
    assert max(strong) <= max(total / all_reduce_ms, 1)  # the ceiling that the text names
    assert all(a <= b + 1e-12 for a, b in zip(strong, weak, strict=True))
    low, high = figure.axes[0].get_ylim()
    assert all(low < text.xy[1] < high for text in figure.axes[0].texts)


def test_labels_of_lines_that_end_together_do_not_overlap():
    figure = figures.scaling_model(10, 0.5, 256)
    strong, weak = figure.axes[0].texts
    assert weak.xyann[1] - strong.xyann[1] >= 12


def test_every_figure_draws_itself_the_same_twice():
    makers = [
        lambda: figures.step_of_replicas(4),
        lambda: figures.errors_by_fault(ERRORS, {"sum for mean": 3.0}),
        lambda: figures.speed_up(SPEED, compute_s=0.064),
        lambda: figures.scaling_model(2, 4, 32),
    ]
    for make in makers:
        assert to_svg(make(), "alt") == to_svg(make(), "alt")


def test_errors_of_rounding_stand_on_the_edge_and_last_bits_are_not_drawn():
    def points(errors):
        figure = figures.errors_by_fault(errors, {"sum for mean": 3.0})
        return [list(line.get_xdata()) for line in figure.axes[0].lines[:3]]

    loss, gradient, replicas = points(ERRORS)
    assert loss[:2] == replicas[:2] == [figures.FLOOR] * 2
    assert gradient == [figures.FLOOR, 3.0, 0.3]
    nearly = {name: [x * (1 + 1e-13) for x in each] for name, each in ERRORS.items()}
    assert points(nearly) == [loss, gradient, replicas]


def test_speed_up_is_measured_against_one_rank_and_predicted_from_r():
    strong, weak = figures.speed_up(SPEED, compute_s=0.064).axes
    assert list(strong.lines[1].get_ydata()) == pytest.approx([1, 0.066 / 0.034, 0.066 / 0.018])
    assert list(strong.lines[2].get_ydata()) == pytest.approx([1, 0.066 / 0.036, 3.3])
    assert list(weak.lines[2].get_ydata()) == [1, 2, 4]


@pytest.mark.parametrize("world_size", [1, 6])
def test_a_step_has_a_column_for_each_rank(world_size):
    figure = figures.step_of_replicas(world_size)
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts.count("shard") == texts.count("mean gradient") == world_size
    assert f"rank {world_size - 1}" in texts


@pytest.mark.parametrize("world_size", [0, 7])
def test_a_step_that_does_not_fit_is_refused(world_size):
    with pytest.raises(ValueError, match=f"found {world_size} ranks, expected 1 to 6"):
        figures.step_of_replicas(world_size)
