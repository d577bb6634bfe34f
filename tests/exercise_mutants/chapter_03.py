"""Plausible wrong solutions of the exercises of "Gradient accumulation"."""

import torch
from torch.nn.utils import clip_grad_norm_

from helpers.accumulate import accumulate_gradients, windows
from helpers.problems import classification_loss_sum, count_samples


def always_k_times(optimizer, num_micro_batches, norm, max_norm):
    return float(num_micro_batches)


def adam_like_sgd(optimizer, num_micro_batches, norm, max_norm):
    limit = max_norm or float("inf")
    return min(num_micro_batches * norm, limit) / min(norm, limit)


def clipping_hides_it(optimizer, num_micro_batches, norm, max_norm):
    return 1.0 if optimizer == "Adam" or max_norm else float(num_micro_batches)


def always_reaches_the_threshold(optimizer, num_micro_batches, norm, max_norm):
    if optimizer == "Adam":
        return 1.0
    return num_micro_batches if max_norm is None else max_norm / min(norm, max_norm)


def _epoch(model, optimizer, micro_batches, is_update, divisor, zero_inside=False, log=None):
    losses, window, loss_sum = [], [], 0.0
    optimizer.zero_grad()
    for index, batch in enumerate(micro_batches):
        if zero_inside:
            optimizer.zero_grad()
        loss = classification_loss_sum(model, batch)
        (loss / divisor(batch)).backward()
        loss_sum, window = loss_sum + loss.item(), [*window, batch]
        if is_update(index):
            optimizer.step()
            optimizer.zero_grad()
            losses.append((log or (lambda s, n: s / n))(loss_sum, sum(map(count_samples, window))))
            window, loss_sum = [], 0.0
    return losses


def steps_on_the_first(model, optimizer, micro_batches, k):
    return _epoch(model, optimizer, micro_batches, lambda i: i % k == 0, lambda b: k * len(b[1]))


def drops_the_short_window(model, optimizer, micro_batches, k):
    is_update = lambda i: (i + 1) % k == 0  # noqa: E731
    return _epoch(model, optimizer, micro_batches, is_update, lambda b: k * len(b[1]))


def divides_by_k(model, optimizer, micro_batches, k):
    def is_update(i):
        return (i + 1) % k == 0 or i == len(micro_batches) - 1

    return _epoch(model, optimizer, micro_batches, is_update, lambda b: k * len(b[1]))


def _per_window(model, optimizer, micro_batches, k, before=None, after=None):
    losses = []
    for window in windows(micro_batches, k):
        optimizer.zero_grad()
        total = sum(map(count_samples, window))
        loss_sum = 0.0
        for batch in window:
            if before:
                before(optimizer)
            loss = classification_loss_sum(model, batch)
            (loss / total).backward()
            loss_sum += loss.item()
        optimizer.step()
        losses.append(after(loss_sum, total, len(window)) if after else loss_sum / total)
    return losses


def zeroes_at_each_micro_batch(model, optimizer, micro_batches, k):
    return _per_window(model, optimizer, micro_batches, k, lambda optimizer: optimizer.zero_grad())


def logs_the_sum(model, optimizer, micro_batches, k):
    return _per_window(model, optimizer, micro_batches, k, after=lambda s, n, length: s)


def logs_k_times_too_little(model, optimizer, micro_batches, k):
    return _per_window(
        model, optimizer, micro_batches, k, after=lambda s, n, length: s / n / length
    )


def never_zeroes(model, optimizer, micro_batches, k):
    losses = []
    for window in windows(micro_batches, k):
        losses.append(accumulate_gradients(model, window, classification_loss_sum, count_samples))
        optimizer.step()
    return losses


def steps_at_each_micro_batch(model, optimizer, micro_batches, k):
    return _per_window(model, optimizer, micro_batches, 1)


def returns_nothing(model, optimizer, micro_batches, k):
    _per_window(model, optimizer, micro_batches, k)


def clips_before_unscaling(scaler, optimizer, scheduler, parameters, max_norm):
    clip_grad_norm_(parameters, max_norm)
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() >= before:
        scheduler.step()


def scheduler_always(scaler, optimizer, scheduler, parameters, max_norm):
    scaler.unscale_(optimizer)
    clip_grad_norm_(parameters, max_norm)
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()


def divides_the_threshold(scaler, optimizer, scheduler, parameters, max_norm):
    clip_grad_norm_(parameters, max_norm / scaler.get_scale())
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() >= before:
        scheduler.step()


def steps_without_the_scaler(scaler, optimizer, scheduler, parameters, max_norm):
    scaler.unscale_(optimizer)
    clip_grad_norm_(parameters, max_norm)
    optimizer.step()
    scaler.update()
    scheduler.step()


def never_updates_the_scale(scaler, optimizer, scheduler, parameters, max_norm):
    scaler.unscale_(optimizer)
    is_finite = bool(torch.isfinite(clip_grad_norm_(parameters, max_norm)))
    scaler.step(optimizer)
    if is_finite:
        scheduler.step()


def waits_while_the_scale_grows(scaler, optimizer, scheduler, parameters, max_norm):
    scaler.unscale_(optimizer)
    clip_grad_norm_(parameters, max_norm)
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() == before:
        scheduler.step()


def does_not_clip(scaler, optimizer, scheduler, parameters, max_norm):
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() >= before:
        scheduler.step()


MUTANTS = {
    "03-step": [always_k_times, adam_like_sgd, clipping_hides_it, always_reaches_the_threshold],
    "03-epoch": [
        steps_on_the_first,
        drops_the_short_window,
        divides_by_k,
        zeroes_at_each_micro_batch,
        logs_the_sum,
        logs_k_times_too_little,
        never_zeroes,
        steps_at_each_micro_batch,
        returns_nothing,
    ],
    "03-scaler": [
        clips_before_unscaling,
        scheduler_always,
        divides_the_threshold,
        steps_without_the_scaler,
        never_updates_the_scale,
        waits_while_the_scale_grows,
        does_not_clip,
    ],
}
