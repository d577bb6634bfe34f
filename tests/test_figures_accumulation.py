"""The figures of chapter 03 draw at the ends of their sliders, the same on every call."""

import itertools

import pytest
import torch

from helpers.figures import accumulation, to_svg

ENDS = list(itertools.product((1, 24), (1, 5), (1, 16)))


@pytest.mark.parametrize(("num_samples", "micro_batch_size", "num_micro_batches"), ENDS)
def test_samples_in_windows_shows_every_sample_once(
    num_samples, micro_batch_size, num_micro_batches
):
    figure = accumulation.samples_in_windows(num_samples, micro_batch_size, num_micro_batches)
    boxes = figure.axes[0].patches
    assert sum(box.get_width() for box in boxes) == num_samples
    assert max(box.get_width() for box in boxes) <= micro_batch_size
    updates = -(-num_samples // (micro_batch_size * num_micro_batches))
    assert len({box.get_y() for box in boxes}) == updates
    assert figure.axes[0].get_xlabel().startswith(f"{updates} updates")
    texts = " ".join(text.get_text() for text in figure.axes[0].texts)
    is_short = num_samples % (micro_batch_size * num_micro_batches) > 0
    assert ("the short one" in texts) == is_short


def test_every_figure_draws_itself_the_same_twice():
    kind = (torch.bfloat16, torch.float32)
    makers = [
        lambda: accumulation.error_against_micro_batches((4, 16), {kind: [1e-3, 1e-2]}),
        lambda: accumulation.peak_memory((1, 2), [2e6, 1e6], [2_000_000, 1_000_000], [2e6] * 2, 5),
        lambda: accumulation.windows_of_rules(3, {"rule": [[0, 1]]}),
        lambda: accumulation.samples_in_windows(5, 2, 2),
        lambda: accumulation.training_curves({"a": [2.0, 1.0], "b": [2.0, 1.0]}, points="b"),
    ]
    for make in makers:
        assert to_svg(make(), "alt") == to_svg(make(), "alt")


def test_labels_of_curves_that_end_together_do_not_overlap():
    figure = accumulation.training_curves({"a": [2.0, 1.0], "b": [2.0, 1.0]}, points="b")
    heights = sorted(text.xy[1] for text in figure.axes[0].texts)
    assert heights[1] - heights[0] > 0.1
