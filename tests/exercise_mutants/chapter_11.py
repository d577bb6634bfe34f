"""Plausible wrong solutions of the exercises of "DistributedDataParallel"."""

import torch
import torch.distributed as dist


def _future(group, tensor):
    return dist.all_reduce(tensor, group=group, async_op=True).get_future()


def half_and_never_divides(group, bucket):
    future = _future(group, bucket.buffer().half())
    return future.then(lambda future: 2 * future.value()[0].float())


def half_divides_after_the_sum(group, bucket):
    n, future = group.size(), _future(group, bucket.buffer().half())
    return future.then(lambda future: future.value()[0].float() / n)


def half_that_stays_half(group, bucket):
    return _future(group, bucket.buffer().half() / group.size()).then(lambda f: f.value()[0])


def sends_all_32_bits(group, bucket):
    return _future(group, bucket.buffer() / group.size()).then(lambda f: f.value()[0])


def half_of_the_half(group, bucket):
    tensor = bucket.buffer().half() / (2 * group.size())
    return _future(group, tensor).then(lambda future: future.value()[0].float())


def forgets_the_future(group, bucket):
    tensor = bucket.buffer().half() / group.size()
    dist.all_reduce(tensor, group=group)
    return tensor.float()


def half_that_waits(group, bucket):
    tensor = (bucket.buffer() / group.size()).half()
    dist.all_reduce(tensor, group=group)
    future = torch.futures.Future()
    future.set_result(tensor.float())
    return future


def half_that_waits_for_its_future(group, bucket):
    summed = _future(group, (bucket.buffer() / group.size()).half()).wait()[0]
    future = torch.futures.Future()
    future.set_result(summed.float())
    return future


def half_divided_by_the_world(group, bucket):
    tensor = (bucket.buffer() / dist.get_world_size()).half()
    return _future(group, tensor).then(lambda future: future.value()[0].float())


def half_over_the_world(group, bucket):
    tensor = (bucket.buffer() / group.size()).half()
    return _future(None, tensor).then(lambda future: future.value()[0].float())


def half_for_itself(group, bucket):
    future = torch.futures.Future()
    future.set_result(bucket.buffer().half().float())
    return future


def goes_on_to_its_own_end(batches):
    for batch in batches:
        dist.all_reduce(torch.ones(1))
        yield batch


def stops_when_its_own_are_gone(batches):
    yield from batches


def leaves_without_a_word(batches):
    for batch in batches:
        present = torch.ones(1)
        dist.all_reduce(present)
        if present < dist.get_world_size():
            return
        yield batch


def yields_first_and_asks_then(batches):
    for batch in [*batches, None]:
        if batch is not None:
            yield batch
        present = torch.tensor(float(batch is not None))
        dist.all_reduce(present)
        if present < dist.get_world_size():
            return


def drops_a_batch_each_time(batches):
    while True:
        present = torch.tensor(float(next(batches, None) is not None))
        dist.all_reduce(present, op=dist.ReduceOp.MIN)
        batch = next(batches, None)
        if not present or batch is None:
            return
        yield batch


def asks_twice(batches):
    for batch in [*batches, None]:
        present = torch.tensor(float(batch is not None))
        dist.barrier()
        dist.all_reduce(present, op=dist.ReduceOp.MIN)
        if not present:
            return
        yield batch


MUTANTS = {
    "11-half": [
        half_and_never_divides,
        half_divides_after_the_sum,
        half_that_stays_half,
        sends_all_32_bits,
        half_of_the_half,
        forgets_the_future,
        half_that_waits,
        half_that_waits_for_its_future,
        half_divided_by_the_world,
        half_over_the_world,
        half_for_itself,
    ],
    "11-uneven": [
        goes_on_to_its_own_end,
        stops_when_its_own_are_gone,
        leaves_without_a_word,
        yields_first_and_asks_then,
        drops_a_batch_each_time,
        asks_twice,
    ],
}
