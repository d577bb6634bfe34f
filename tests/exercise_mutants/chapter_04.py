"""Plausible wrong solutions of chapter 04's exercises; each check must reject every one."""

import torch.nn.functional as F

from helpers.problems import count_tokens, token_loss_sum


def divides_by_micro_batches_too(counts):
    return 1 / max(sum(counts), 1) / len(counts)


def mean_count_per_micro_batch(counts):
    return len(counts) / max(sum(counts), 1)


def counts_one_for_a_silent_micro_batch(counts):
    return 1 / sum(max(count, 1) for count in counts)


def divides_by_zero_when_all_is_ignored(counts):
    return 1 / sum(counts)


def not_a_number_when_all_is_ignored(counts):
    return 1 / sum(counts) if sum(counts) else float("nan")


def compares_inputs_with_padding(batch):
    return int((batch[0] != 0).sum())


def counts_padding(batch):
    return batch[1].numel()


def counts_inputs_up_to_the_last_that_is_not_padding(batch):
    return int((batch[0] != 0).flip(1).cumsum(1).bool().sum())


def never_divides(model, window):
    total = loss = 0
    for batch in window:
        loss_sum = token_loss_sum(model, batch)
        loss_sum.backward()
        total, loss = total + count_tokens(batch), loss + loss_sum.item()
    return loss / total


def looks_ahead(model, window):
    window = list(window)
    total, loss = sum(count_tokens(batch) for batch in window), 0.0
    for batch in window:
        loss_mean = token_loss_sum(model, batch) / total
        loss_mean.backward()
        loss += loss_mean.item()
    return loss


def divides_each_time(model, window):
    total = loss = 0
    for batch in window:
        loss_sum = token_loss_sum(model, batch)
        loss_sum.backward()
        total, loss = total + count_tokens(batch), loss + loss_sum.item()
        for parameter in model.parameters():
            parameter.grad /= total
    return loss / total


def logs_the_sum(model, window):
    total = loss = 0
    for batch in window:
        loss_sum = token_loss_sum(model, batch)
        loss_sum.backward()
        total, loss = total + count_tokens(batch), loss + loss_sum.item()
    for parameter in model.parameters():
        parameter.grad /= total
    return loss


def mean_of_means(model, window):
    loss = 0.0
    for inputs, targets in window:
        logits = model(inputs).flatten(0, 1)
        part = F.cross_entropy(logits, targets.flatten(), reduction="sum")
        part = part / max(count_tokens((inputs, targets)), 1) / len(window)
        part.backward()
        loss += part.item()
    return loss


MUTANTS = {
    "04-divisor": [
        divides_by_micro_batches_too,
        mean_count_per_micro_batch,
        counts_one_for_a_silent_micro_batch,
        divides_by_zero_when_all_is_ignored,
        not_a_number_when_all_is_ignored,
    ],
    "04-count": [
        compares_inputs_with_padding,
        counts_padding,
        counts_inputs_up_to_the_last_that_is_not_padding,
    ],
    "04-late": [never_divides, looks_ahead, divides_each_time, logs_the_sum, mean_of_means],
}
