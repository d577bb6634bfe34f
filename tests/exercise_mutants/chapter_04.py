"""Plausible wrong solutions of chapter 04's exercises; each check must reject every one."""

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
    return loss / max(total, 1)


def looks_ahead(model, window):
    window = list(window)
    total, loss = max(sum(count_tokens(batch) for batch in window), 1), 0.0
    for batch in window:
        loss_mean = token_loss_sum(model, batch) / total
        loss_mean.backward()
        loss += loss_mean.item()
    return loss


def looks_ahead_after_the_first(model, window):
    first = next(window)
    loss_sum = token_loss_sum(model, first)
    loss_sum.backward()
    rest = list(window)
    total = count_tokens(first) + sum(count_tokens(batch) for batch in rest)
    loss = loss_sum.item()
    for batch in rest:
        loss_sum = token_loss_sum(model, batch)
        loss_sum.backward()
        loss += loss_sum.item()
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad /= max(total, 1)
    return loss / max(total, 1)


def keeps_all_graphs_for_one_backward(model, window):
    total, loss_sum = 0, 0.0
    for batch in window:
        loss_sum = loss_sum + token_loss_sum(model, batch)
        total += count_tokens(batch)
    loss = loss_sum / max(total, 1)
    loss.backward()
    return loss.item()


def divides_by_zero_when_the_window_is_silent(model, window):
    total = loss = 0
    for batch in window:
        loss_sum = token_loss_sum(model, batch)
        loss_sum.backward()
        total, loss = total + count_tokens(batch), loss + loss_sum.item()
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad /= total
    return loss / total


def leaves_nan_when_the_window_is_silent(model, window):
    total = loss = 0
    for batch in window:
        loss_sum = token_loss_sum(model, batch)
        loss_sum.backward()
        total, loss = total + count_tokens(batch), loss + loss_sum.item()
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad /= total
    return loss / max(total, 1)


def divides_frozen_parameters_too(model, window):
    total = loss = 0
    for batch in window:
        loss_sum = token_loss_sum(model, batch)
        loss_sum.backward()
        total, loss = total + count_tokens(batch), loss + loss_sum.item()
    for parameter in model.parameters():
        parameter.grad /= max(total, 1)
    return loss / max(total, 1)


def divides_each_time(model, window):
    total = loss = 0
    for batch in window:
        loss_sum = token_loss_sum(model, batch)
        loss_sum.backward()
        total, loss = total + count_tokens(batch), loss + loss_sum.item()
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad /= max(total, 1)
    return loss / max(total, 1)


def logs_the_sum(model, window):
    total = loss = 0
    for batch in window:
        loss_sum = token_loss_sum(model, batch)
        loss_sum.backward()
        total, loss = total + count_tokens(batch), loss + loss_sum.item()
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad /= max(total, 1)
    return loss


def mean_of_means(model, window):
    loss = num_micro_batches = 0
    for batch in window:
        loss_mean = token_loss_sum(model, batch) / max(count_tokens(batch), 1)
        loss_mean.backward()
        loss += loss_mean.item()
        num_micro_batches += 1
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad /= num_micro_batches
    return loss / num_micro_batches


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
    "04-late": [
        never_divides,
        looks_ahead,
        looks_ahead_after_the_first,
        keeps_all_graphs_for_one_backward,
        divides_by_zero_when_the_window_is_silent,
        leaves_nan_when_the_window_is_silent,
        divides_frozen_parameters_too,
        divides_each_time,
        logs_the_sum,
        mean_of_means,
    ],
}
