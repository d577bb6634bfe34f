"""Chapter 04's small versions beside the helper, and its figures at both ends of every slider."""

import notebook_cells
import pytest
import torch

from helpers.accumulate import accumulate_gradients, split_batch
from helpers.compare import gradients, relative_error
from helpers.figures import normalisation
from helpers.problems import count_tokens, make_gpt, token_loss_sum

LENGTHS = [3, 31, 8, 64, 2, 26, 11, 5, 29, 14, 1, 20, 7, 23, 12, 32]


@pytest.fixture(scope="module")
def chapter():
    return notebook_cells.namespace(notebook_cells.chapter("04"))


def helper_gradient(batch, num_micro_batches):
    model = make_gpt(width=32, depth=1, dtype=torch.float64)
    window = split_batch(batch, len(batch[0]) // num_micro_batches)
    loss = accumulate_gradients(model, window, token_loss_sum, count_tokens)
    return loss, torch.cat([grad.flatten() for grad in gradients(model).values()])


@pytest.mark.parametrize("k", [1, 2, 4, 16])
def test_true_mean_is_the_helper_and_the_whole_batch(chapter, k):
    batch = chapter["padded_batch"](LENGTHS, seed=0)
    loss, found = chapter["gradient_of"](chapter["backward_true_mean"], batch, k)
    for expected_loss, expected in (helper_gradient(batch, k), helper_gradient(batch, 1)):
        assert relative_error(found, expected) < 1e-12
        assert loss == pytest.approx(expected_loss, rel=1e-12)


def test_mean_of_means_is_right_for_equal_lengths_only(chapter):
    for lengths, is_right in (([40] * 16, True), (LENGTHS, False)):
        batch = chapter["padded_batch"](lengths, seed=0)
        _, found = chapter["gradient_of"](chapter["backward_mean_of_means"], batch, 16)
        assert (relative_error(found, helper_gradient(batch, 16)[1]) < 1e-12) is is_right


@pytest.mark.parametrize("k", [1, 16])
@pytest.mark.parametrize("lengths", [[32] * 16, list(range(4, 68, 4))])
def test_exploration_at_both_ends_of_its_sliders(chapter, lengths, k):
    ratio, error, cosine = chapter["compare"](lengths, k)
    assert (error < 1e-12) is (k == 1 or len(set(lengths)) == 1)
    shown = normalisation.window(lengths, k, ratio, cosine)._repr_svg_()
    assert f">{cosine:.2f}<" in shown
    nearly = normalisation.window(lengths, k, ratio + 1e-9, cosine - 1e-9)._repr_svg_()
    assert nearly == shown  # last bits of a sum are not drawn


def test_relative_weights_are_one_for_equal_counts_and_average_to_one_over_tokens():
    assert normalisation.relative_weights([5, 15, 20, 60], 4) == [5, 5 / 3, 1.25, 25 / 60]
    assert normalisation.relative_weights([5, 15, 20, 60], 1) == [1] * 4
    weights = normalisation.relative_weights(LENGTHS, 4)
    assert sum(w * n for w, n in zip(weights, LENGTHS, strict=True)) == pytest.approx(sum(LENGTHS))
    with pytest.raises(ValueError, match="4 sequences, expected a multiple of 3"):
        normalisation.relative_weights([1, 2, 3, 4], 3)


def test_measured_figures_draw_what_they_are_given():
    windows = {k: [(1.0, 0.1 * k, 1 - 0.02 * k)] * 3 for k in (1, 4, 16)}
    assert "micro-batches" in normalisation.log_and_gradient(windows)._repr_svg_()
    runs = {
        "true mean": [([3.0, 2.0], 2.5, 2.4)] * 2,
        "4 lines each": [([3.0, 2.1], 2.51, 2.4)] * 2,
        "1 line each": [([2.9, 1.9], 2.53, 2.39)] * 2,
    }
    figure = normalisation.training(runs)
    for name in runs:
        assert f">{name}<" in figure._repr_svg_()
    below = [line.get_ydata()[0] for line in figure.axes[1].lines]
    assert below == pytest.approx([0.01, 0.03, 0, -0.01, 0])  # by tokens, by lines, and the zero
