"""Chapter 03 beyond `test_chapters_match_helpers`: other models, and its training with slips."""

import functools

import notebook_cells
import pytest
import torch
import torch.nn.functional as F

from helpers import accumulate as helper
from helpers import problems
from helpers.compare import gradients, relative_error

SAMPLES = problems.classification_loss_sum, problems.count_samples
TOKENS = problems.token_loss_sum, problems.count_tokens


@pytest.fixture(scope="module")
def chapter() -> dict:
    return notebook_cells.namespace(notebook_cells.chapter("03"))


def digits(num_samples: int = 44):
    return tuple(part[:num_samples] for part in problems.digits(torch.float64).train)


def lines():
    """Lines of 1 to 64 tokens, so that micro-batches count unequally; the same on every Python."""
    tokens = torch.randint(96, (9, 65), generator=torch.Generator().manual_seed(0))
    is_padding = torch.arange(64) >= torch.arange(1, 65, 7)[:9, None]
    return tokens[:, :-1], tokens[:, 1:].masked_fill(is_padding, problems.IGNORE_INDEX)


PROBLEMS = {
    "conv": (problems.make_conv, digits, SAMPLES, 8),
    "gpt": (functools.partial(problems.make_gpt, width=16, heads=2), lines, TOKENS, 2),
}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_small_version_helper_and_big_batch_agree(chapter, problem):
    make, batch, (loss_sum, count), micro_batch_size = PROBLEMS[problem]
    batch = batch()
    big = make(dtype=torch.float64)
    targets = batch[1].flatten()
    mean = F.cross_entropy(big(batch[0]).reshape(len(targets), -1), targets, ignore_index=-100)
    mean.backward()
    versions = {
        "chapter": (chapter["accumulate"], chapter["cut"](batch, micro_batch_size)),
        "helper": (helper.accumulate_gradients, helper.split_batch(batch, micro_batch_size)),
    }
    for name, (accumulate, window) in versions.items():
        model = make(dtype=torch.float64)
        loss = accumulate(model, window, loss_sum, count)
        assert abs(loss - mean.item()) < 1e-12, name
        assert relative_error(gradients(model), gradients(big)) < 1e-12, name


def train(chapter, num_micro_batches: int, misplaced=None, num_updates: int = 30):
    model = problems.make_mlp(dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=num_updates)
    micro_batches = helper.split_batch(digits(32 * num_updates), 32 // num_micro_batches)
    for window in helper.windows(micro_batches, num_micro_batches):
        chapter["update"](model, optimizer, scheduler, window, misplaced)
    return dict(model.named_parameters()), scheduler.last_epoch


def test_four_micro_batches_train_as_one_and_each_slip_shows(chapter):
    reference, steps = train(chapter, 1)
    parameters, same_steps = train(chapter, 4)
    assert steps == same_steps == 30  # and not 120, the micro-batches
    assert relative_error(parameters, reference) < 1e-12
    for slip in ("zero_grad", "clipping"):
        assert relative_error(train(chapter, 4, slip)[0], reference) > 1e-5, slip


@pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler")
def test_a_misplaced_scheduler_steps_at_each_micro_batch(chapter):
    parameters, steps = train(chapter, 4, "scheduler")
    assert steps == 120
    assert relative_error(parameters, train(chapter, 4)[0]) > 1e-2
