"""Wrong solutions of chapter 13 that its checks must reject."""

import math
import statistics


def _solved(small, s, big, b):
    return (s - b) / (1 / small - 1 / big), (big * b - small * s) / (big - small)


def mean_of_ratios(pairs):
    return statistics.mean(t / q if q > 0 else math.inf for t, q in (_solved(*p) for p in pairs))


def short_cut(pairs):
    solved = [_solved(*pair) for pair in pairs]
    squared = statistics.mean(big_norm for *_, big_norm in pairs)
    return statistics.mean(trace for trace, _ in solved) / squared


def norms_first(pairs):
    trace, squared = _solved(*map(statistics.mean, zip(*pairs, strict=True)))
    return trace / squared if squared > 0 else math.inf


def negative_scale(pairs):
    traces, squares = zip(*(_solved(*pair) for pair in pairs), strict=True)
    squared = statistics.mean(squares)
    return statistics.mean(traces) / squared if squared else math.inf


def without_the_lost(pairs):
    solved = [each for each in (_solved(*pair) for pair in pairs) if each[1] > 0]
    if not solved:
        return math.inf
    traces, squares = zip(*solved, strict=True)
    return statistics.mean(traces) / statistics.mean(squares)


def sizes_swapped(pairs):
    return norms_first([(big, s, small, b) for small, s, big, b in pairs])


def _plan(batch, num_samples, epochs, warm_up_samples, base_batch, base_lr, power):
    if batch > num_samples:
        raise ValueError(f"{batch} samples, expected {num_samples} at most")
    updates, warm_up = epochs * (num_samples // batch), math.ceil(warm_up_samples / batch)
    return updates, warm_up, base_lr * (batch / base_batch) ** power


def forgets_ranks(*plan, micro_batch_size, num_micro_batches, world_size):
    return _plan(micro_batch_size * num_micro_batches, *plan)


def forgets_accumulation(*plan, micro_batch_size, num_micro_batches, world_size):
    return _plan(micro_batch_size * world_size, *plan)


def _batch(ways):
    return math.prod(ways.values())


def epochs_first(num_samples, epochs, *plan, **ways):
    _, *others = _plan(_batch(ways), num_samples, epochs, *plan)
    return epochs * num_samples // _batch(ways), *others


def rounds_warm_up_down(num_samples, epochs, warm_up_samples, *plan, **ways):
    updates, _, lr = _plan(_batch(ways), num_samples, epochs, warm_up_samples, *plan)
    return updates, warm_up_samples // _batch(ways), lr


def always_linear(*plan, **ways):
    return _plan(_batch(ways), *plan[:-1], 1)


def no_update_at_all(num_samples, *plan, **ways):
    _, warm_up, lr = _plan(_batch(ways), 10**9, *plan)
    return plan[0] * (num_samples // _batch(ways)), warm_up, lr


MUTANTS = {
    "13-noise": [
        mean_of_ratios,
        short_cut,
        norms_first,
        negative_scale,
        without_the_lost,
        sizes_swapped,
    ],
    "13-plan": [
        forgets_ranks,
        forgets_accumulation,
        epochs_first,
        rounds_warm_up_down,
        always_linear,
        no_update_at_all,
    ],
}
