"""Wrong solutions of chapter 12 that its checks must reject."""

from contextlib import contextmanager

import torch
import torch.distributed as dist

FLAG = "require_backward_grad_sync"


def _summed(number):
    total = torch.tensor(number, dtype=torch.float64)
    dist.all_reduce(total)
    return total.item()


def own_count(window, count):
    total = sum(map(count, window))
    return 1 / total if total else 0.0


def own_count_times_w(window, count):
    total = sum(map(count, window))
    return dist.get_world_size() / total if total else 0.0


def forgets_w(window, count):
    return 1 / _summed(sum(map(count, window)) or 1)


def divides_by_zero(window, count):
    return dist.get_world_size() / _summed(sum(map(count, window)))


def counts_micro_batches(window, count):
    return dist.get_world_size() / _summed(len(window))


def at_least_one_each(window, count):
    total = _summed(sum(max(count(batch), 1) for batch in window))
    return dist.get_world_size() / total


def one_all_reduce_a_micro_batch(window, count):
    longest = torch.tensor(len(window))
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    counts = [count(batch) for batch in window] + [0] * (int(longest) - len(window))
    total = sum(map(_summed, counts))
    return dist.get_world_size() / total if total else 0.0


@contextmanager
def without_finally(*models):
    before = [getattr(model, FLAG) for model in models]
    for model in models:
        setattr(model, FLAG, False)
    yield
    for model, flag in zip(models, before, strict=True):
        setattr(model, FLAG, flag)


@contextmanager
def always_on_again(*models):
    for model in models:
        getattr(model, FLAG)
        setattr(model, FLAG, False)
    try:
        yield
    finally:
        for model in models:
            setattr(model, FLAG, True)


@contextmanager
def swallows(*models):
    before = [getattr(model, FLAG) for model in models]
    for model in models:
        setattr(model, FLAG, False)
    try:
        yield
    except Exception:
        pass
    finally:
        for model, flag in zip(models, before, strict=True):
            setattr(model, FLAG, flag)


@contextmanager
def only_the_first(*models):
    with models[0].no_sync():
        yield


@contextmanager
def first_flag_for_all(*models):
    before = getattr(models[0], FLAG)
    for model in models:
        setattr(model, FLAG, False)
    try:
        yield
    finally:
        for model in models:
            setattr(model, FLAG, before)


@contextmanager
def sets_before_it_tries(*models):
    before = []
    for model in models:
        before.append(getattr(model, FLAG))
        setattr(model, FLAG, False)
    try:
        yield
    finally:
        for model, flag in zip(models, before, strict=True):
            setattr(model, FLAG, flag)


@contextmanager
def quiet_for_ever(*models):
    for model in models:
        setattr(model, FLAG, False)
    yield


MUTANTS = {
    "12-normaliser": [
        own_count,
        own_count_times_w,
        forgets_w,
        divides_by_zero,
        counts_micro_batches,
        at_least_one_each,
        one_all_reduce_a_micro_batch,
    ],
    "12-quiet": [
        without_finally,
        always_on_again,
        swallows,
        only_the_first,
        first_flag_for_all,
        sets_before_it_tries,
        quiet_for_ever,
    ],
}
