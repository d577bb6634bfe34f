"""Plausible wrong solutions of the exercises of "Sharding the data"."""

import itertools

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from helpers.metrics import global_mean
from helpers.sampler import DistributedSampler, EvaluationSampler


def deal(order, rank, world_size, padding_from):
    size = -(-len(order) // world_size) * world_size
    padding = itertools.islice(itertools.cycle(padding_from), size - len(order))
    return [*order, *padding][rank::world_size]


def starts_the_epoch_again(order, consumed, rank, world_size):
    return deal(order, rank, world_size, order)


def skips_as_many_on_each_rank(order, consumed, rank, world_size):
    return deal(order, rank, world_size, order)[consumed:]


def pads_before_it_skips(order, consumed, rank, world_size):
    return deal(order, rank, world_size, order)[consumed // world_size :]


def pads_with_the_rest(order, consumed, rank, world_size):
    rest = order[consumed:]
    return deal(rest, rank, world_size, rest)


def does_not_pad(order, consumed, rank, world_size):
    return order[consumed:][rank::world_size]


def changes_the_order(order, consumed, rank, world_size):
    whole = list(order)
    del order[:consumed]
    return deal(order, rank, world_size, whole)


def _right(model, dataset, batch_size, sampler):
    """(right answers, samples) of each batch of this rank."""
    with torch.no_grad():
        for images, labels in DataLoader(dataset, batch_size, sampler=sampler):
            yield (model(images).argmax(dim=1) == labels).sum().item(), len(labels)


def counts_twice(model, dataset, batch_size):
    sampler = DistributedSampler(dataset, shuffle=False)
    right, counts = zip(*_right(model, dataset, batch_size, sampler), strict=True)
    return global_mean(sum(right), sum(counts))


def mean_of_the_ranks(model, dataset, batch_size):
    batches = list(_right(model, dataset, batch_size, EvaluationSampler(dataset)))
    right, count = map(sum, zip(*batches, strict=True)) if batches else (0, 1)
    return global_mean(right / count, 1)


def mean_of_the_batches(model, dataset, batch_size):
    batches = list(_right(model, dataset, batch_size, EvaluationSampler(dataset)))
    return global_mean(sum(right / count for right, count in batches), len(batches))


def own_share_only(model, dataset, batch_size):
    batches = list(_right(model, dataset, batch_size, EvaluationSampler(dataset)))
    right, count = map(sum, zip(*batches, strict=True)) if batches else (0, 1)
    return right / count


def divides_by_the_padded_count(model, dataset, batch_size):
    right = sum(
        right for right, _ in _right(model, dataset, batch_size, EvaluationSampler(dataset))
    )
    return global_mean(right, len(DistributedSampler(dataset)))


def reduces_in_each_batch(model, dataset, batch_size):
    total = torch.zeros(2)
    for batch in _right(model, dataset, batch_size, EvaluationSampler(dataset)):
        numbers = torch.tensor(batch, dtype=torch.float32)
        dist.all_reduce(numbers)
        total += numbers
    return (total[0] / total[1]).item()


def _cut(indices, batch_size):
    return [indices[i : i + batch_size] for i in range(0, len(indices), batch_size)]


def _shuffled(batches, seed):
    order = torch.randperm(len(batches), generator=torch.Generator().manual_seed(seed))
    return [batches[i] for i in order.tolist()]


def does_not_sort(lengths, batch_size, rank, world_size, epoch):
    order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(epoch)).tolist()
    return _cut(order[rank::world_size], batch_size)


def sorts_within_a_rank(lengths, batch_size, rank, world_size, epoch):
    mine = sorted(range(rank, len(lengths), world_size), key=lengths.__getitem__)
    return _shuffled(_cut(mine, batch_size), epoch)


def short_ones_on_rank_0(lengths, batch_size, rank, world_size, epoch):
    by_length = sorted(range(len(lengths)), key=lengths.__getitem__)
    share = len(lengths) // world_size
    return _shuffled(_cut(by_length[rank * share : (rank + 1) * share], batch_size), epoch)


def shuffles_each_rank_for_itself(lengths, batch_size, rank, world_size, epoch):
    by_length = sorted(range(len(lengths)), key=lengths.__getitem__)
    return _shuffled(_cut(by_length[rank::world_size], batch_size), epoch + 10 * rank)


def always_the_same_order(lengths, batch_size, rank, world_size, epoch):
    by_length = sorted(range(len(lengths)), key=lengths.__getitem__)
    return _cut(by_length[rank::world_size], batch_size)


def everything_on_each_rank(lengths, batch_size, rank, world_size, epoch):
    by_length = sorted(range(len(lengths)), key=lengths.__getitem__)
    num_batches = len(lengths) // (batch_size * world_size)
    return _shuffled(_cut(by_length, batch_size)[:num_batches], epoch)


def forgets_the_ranks(lengths, batch_size, rank, world_size, epoch):
    by_length = sorted(range(len(lengths)), key=lengths.__getitem__)
    return _shuffled(_cut(by_length, batch_size), epoch)


MUTANTS = {
    "06-rest": [
        starts_the_epoch_again,
        skips_as_many_on_each_rank,
        pads_before_it_skips,
        pads_with_the_rest,
        does_not_pad,
        changes_the_order,
    ],
    "06-exact": [
        counts_twice,
        mean_of_the_ranks,
        mean_of_the_batches,
        own_share_only,
        divides_by_the_padded_count,
        reduces_in_each_batch,
    ],
    "06-lengths": [
        does_not_sort,
        sorts_within_a_rank,
        short_ones_on_rank_0,
        shuffles_each_rank_for_itself,
        always_the_same_order,
        everything_on_each_rank,
        forgets_the_ranks,
    ],
}
