"""Plausible wrong solutions of chapter 02: each must be rejected by its check."""

import torch

from helpers import problems
from helpers.memory import LiveBytes


def activations_only_in_proportion(measure, batch_size):
    return measure(1) * batch_size


def slope_without_the_start(measure, batch_size):
    return (measure(2) - measure(1)) * batch_size


def one_sample_too_many(measure, batch_size):
    one, two = measure(1), measure(2)
    return one + (two - one) * (batch_size + 1)


def measured_in_full(measure, batch_size):
    return measure(batch_size)


def peak_of(make_model, make_optimizer, batches, steps):
    with LiveBytes() as live:
        model = make_model()
        optimizer = make_optimizer(model.parameters())
        for batch in batches[:steps]:
            problems.token_loss_sum(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    return live.peak_bytes


def longest_of(batches):
    return max(batches, key=lambda batch: batch[0].numel())


def no_optimizer_and_the_first_batch(make_model, make_optimizer, batches):
    with LiveBytes() as live:
        model = make_model()
        problems.token_loss_sum(model, batches[0]).backward()
    return live.peak_bytes


def no_optimizer(make_model, make_optimizer, batches):
    return no_optimizer_and_the_first_batch(make_model, make_optimizer, [longest_of(batches)])


def one_step(make_model, make_optimizer, batches):
    return peak_of(make_model, make_optimizer, [longest_of(batches)], 1)


def two_steps_on_the_first_batch(make_model, make_optimizer, batches):
    return peak_of(make_model, make_optimizer, batches[:1] * 2, 2)


def alive_instead_of_peak(make_model, make_optimizer, batches):
    with LiveBytes() as live:
        model = make_model()
        optimizer = make_optimizer(model.parameters())
        for batch in [longest_of(batches)] * 2:
            problems.token_loss_sum(model, batch).backward()
            optimizer.step()
    return live.live_bytes


def every_batch_twice(make_model, make_optimizer, batches):
    with LiveBytes() as live:
        model = make_model()
        optimizer = make_optimizer(model.parameters())
        for batch in batches * 2:
            optimizer.zero_grad()
            problems.token_loss_sum(model, batch).backward()
            optimizer.step()
    return live.peak_bytes


def as_adam(shapes):
    return sum(8 * torch.Size(shape).numel() + 4 for shape in shapes)


def vectors_factored_to_one_number(shapes):
    return sum(4 * sum(shape[:2]) + 4 if len(shape) > 1 else 8 for shape in shapes)


def counters_forgotten(shapes):
    return sum(4 * sum(shape) for shape in shapes)


MUTANTS = {
    "02-two-probes": [
        activations_only_in_proportion,
        slope_without_the_start,
        one_sample_too_many,
        measured_in_full,
    ],
    "02-finder": [
        no_optimizer_and_the_first_batch,
        no_optimizer,
        one_step,
        two_steps_on_the_first_batch,
        alive_instead_of_peak,
        every_batch_twice,
    ],
    "02-adafactor": [as_adam, vectors_factored_to_one_number, counters_forgotten],
}
