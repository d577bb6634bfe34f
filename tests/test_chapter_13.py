"""Chapter 13: its small noise scale beside the helper; exercises' numbers; figures; torch."""

import statistics

import notebook_cells
import pytest
import torch

from helpers import problems
from helpers.figures import batch_size as figures
from helpers.figures import to_svg
from helpers.noise_scale import NoiseScale, micro_batch_norms, squared_norm

LOSS_SUM, COUNT = problems.classification_loss_sum, problems.count_samples
BATCH = tuple(part[:64] for part in problems.digits(torch.float64).train)
WINDOW = list(zip(*(part.split(16) for part in BATCH), strict=True))
SWEEP = {b: [[2.0, 2.1], [1.0, 9.0], [0.5, 0.6]] for b in (8, 32, 128, 512)}
CURVES, RATES = {b: [(1, [2.0, 2.2]), (4, [1.0, 1.1])] for b in (8, 32)}, {8: 1 / 64, 32: 1 / 16}


@pytest.fixture(scope="module")
def chapter():
    return notebook_cells.namespace(notebook_cells.chapter("13"))


def make_mlp():
    return problems.make_mlp((64, 8, 10), dtype=torch.float64)


def test_the_small_version_is_the_helper(chapter):
    pair = chapter["norms"](make_mlp(), WINDOW)
    assert pair == pytest.approx(micro_batch_norms(make_mlp(), WINDOW, LOSS_SUM, COUNT), rel=1e-12)
    pairs = [pair, (1.5 * pair[0], pair[1])]
    assert chapter["noise_scale"](pairs, 16, 64) == NoiseScale(16, 64, pairs).samples
    lost = [(1.0, 0.0)]
    assert chapter["noise_scale"](lost, 16, 64) == NoiseScale(16, 64, lost).samples == float("inf")


def test_the_monitor_of_exercise_13_monitor_finds_a_negative_trace():
    for batches in (WINDOW[:2], WINDOW):
        model, small = make_mlp(), []
        for batch in batches:
            (LOSS_SUM(model, batch) / 16 / len(batches)).backward()
            small.append(squared_norm(p.grad for p in model.parameters()))
        pairs = [(statistics.mean(small), small[-1])]
        assert NoiseScale(16, 16 * len(batches), pairs).trace < 0


def test_the_numbers_of_exercise_13_bend():
    updates = [1 + 1000 / batch for batch in (250, 4000)]
    assert updates[0] / updates[1] == 4
    assert 4000 * updates[1] / (250 * updates[0]) == 4


def test_every_figure_draws_itself_the_same_twice():
    makers = [
        lambda: figures.variance(4.0, {8: 0.5, 32: 0.1}, {8: 0.5, 32: 0.1}, 64),
        lambda: figures.few_windows({1: [3.0, float("inf")], 4: [9.0, 11.0]}, 10.0, 16.0, 4.0),
        lambda: figures.sweep(SWEEP, [0.5, 1.0, 2.0], 1, "SGD"),
        lambda: figures.sweep(SWEEP, [0.5, 1.0, 2.0], 0.5, "Adam"),
        lambda: figures.curves(CURVES, RATES, 64),
        lambda: figures.warm_up({"conv, 1": {"0": [0.1, 0.9], "4": [0.03, 0.02]}}),
        lambda: figures.steps_to_target({4: [200, 210], 64: [50, 60]}, 40, 16, [14, 20], [60, 600]),
    ]
    for make in makers:
        assert to_svg(make(), "alt") == to_svg(make(), "alt")


def test_losses_above_chance_are_drawn_at_chance():
    above, _ = figures.sweep(SWEEP, [0.5, 1.0, 2.0], 1, "SGD").axes
    assert max(max(line.get_ydata()) for line in above.lines) == pytest.approx(2.302585)


def test_curves_count_epochs_above_and_updates_below():
    above, below = figures.curves(CURVES, RATES, 64).axes
    names = [text.get_text() for text in above.get_legend().get_texts()]
    assert names == ["B = 8, rate 1/64", "B = 32, rate 1/16"]
    assert list(above.lines[1].get_xdata()) == [0.5, 2.0]
    assert list(below.lines[1].get_xdata()) == [1, 4]


def test_an_estimate_that_does_not_exist_is_drawn_at_the_edge_that_says_none():
    (axes,) = figures.few_windows({1: [float("inf")] * 3}, 10.0, 16.0, 4.0).axes
    names = {label.get_text(): label.get_position()[1] for label in axes.get_yticklabels()}
    assert list(axes.lines[1].get_ydata()) == [names["none"]] == [200]


def test_seeds_of_a_warm_up_stand_side_by_side():
    (axes,) = figures.warm_up({"conv, 1": {"0": [0.5, 0.5, 0.5]}}).axes
    places = axes.lines[0].get_xdata()
    assert len(set(places)) == 3
    assert sum(places) == pytest.approx(0)


def test_the_bands_of_the_ceiling_span_what_was_found():
    (axes,) = figures.steps_to_target({4: [200], 64: [50]}, 40, 16, [20, 14], [600, 60, 90]).axes
    spans = [(patch.get_x(), patch.get_x() + patch.get_width()) for patch in axes.patches]
    assert spans == [(60, 600), (14, 20)]


def test_the_exploration_draws_both_ends_of_its_sliders(chapter):
    cells = notebook_cells.code_cells(notebook_cells.read(notebook_cells.chapter("13")))
    (cell,) = [cell for cell in cells if "def chosen(" in cell.source]
    rates = [2.0**k for k in range(-6, 3)]
    runs = {b: [(t, [[1.0, 2.0]] * 9, []) for t in (1, 2)] for b in (8, 32, 128, 512)}
    names = chapter | {"BATCHES": tuple(runs), "LRS": rates, "by_sgd": runs}
    asked = {}
    names["explore"] = lambda draw, **options: asked.update(options)
    exec(compile(cell.source, "explore", "exec"), names)
    chosen = {
        (rule, base): names["chosen"](rule, base)[0]
        for rule in (asked["rule"][0], asked["rule"][-1])
        for base in (asked["base"][0], asked["base"][-1])
    }
    assert chosen == {
        ("keep", "1/64"): dict.fromkeys(runs, 1 / 64),
        ("keep", "1/4"): dict.fromkeys(runs, 1 / 4),
        ("linear", "1/64"): {8: 1 / 64, 32: 1 / 16, 128: 1 / 4, 512: 1},
        ("linear", "1/4"): {8: 1 / 4, 32: 1, 128: 4},
    }
    assert names["chosen"]("root", "1/64")[0][512] == 1 / 8
    assert "4 batch sizes" in names["by_rule"]("root", "1/64").shows
