"""Wrong solutions of chapter 10 that its checks must reject."""

from functools import partial

import torch
import torch.distributed as dist


def pack(bucket):
    return torch.cat([p.grad.flatten() for p in bucket]) / dist.get_world_size()


def unpack(bucket, flat):
    for param, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
        param.grad.copy_(part.view_as(param))


def hooked(send, model, buckets):
    """The right frame: send(buckets, number of those that are complete, state) after each hook."""
    state = {}

    def ready(param):
        if not state:
            state.update(missing=[set(bucket) for bucket in buckets], in_flight=[])
        for missing in state["missing"]:
            missing.discard(param)
        num_ready = next((i for i, m in enumerate(state["missing"]) if m), len(buckets))
        send(buckets, num_ready, state["in_flight"])
        if num_ready == len(buckets):
            for bucket, (flat, work) in zip(buckets, state["in_flight"], strict=False):
                work.wait()
                unpack(bucket, flat)
            state.clear()

    for param in model.parameters():
        param.register_post_accumulate_grad_hook(ready)


def post(bucket, in_flight, flat=None):
    flat = pack(bucket) if flat is None else flat
    in_flight.append((flat, dist.all_reduce(flat, async_op=True)))


def _when_ready(buckets, num_ready, in_flight):
    for bucket in buckets[len(in_flight) : num_ready]:
        post(bucket, in_flight)


def no_overlap(model, buckets):
    def send(buckets, num_ready, in_flight):
        if num_ready == len(buckets):
            _when_ready(buckets, num_ready, in_flight)

    hooked(send, model, buckets)


def blocks_in_the_hook(model, buckets):
    def send(buckets, num_ready, in_flight):
        for bucket in buckets[len(in_flight) : num_ready]:
            post(bucket, in_flight)
            in_flight[-1][1].wait()

    hooked(send, model, buckets)


def in_forward_order(model, buckets):
    hooked(_when_ready, model, buckets[::-1])


def a_message_each(model, buckets):
    hooked(_when_ready, model, [[param] for bucket in buckets for param in bucket])


def one_message_too_many(model, buckets):
    def send(buckets, num_ready, in_flight):
        if num_ready == len(buckets):
            dist.all_reduce(torch.ones(1))
        _when_ready(buckets, num_ready, in_flight)

    hooked(send, model, buckets)


def does_not_divide(model, buckets):
    def send(buckets, num_ready, in_flight):
        for bucket in buckets[len(in_flight) : num_ready]:
            post(bucket, in_flight, pack(bucket) * dist.get_world_size())

    hooked(send, model, buckets)


def never_unpacks(model, buckets):
    works = []

    def ready(bucket, param):
        if bucket[-1] is param:
            flat = pack(bucket)
            works.append((flat, dist.all_reduce(flat, async_op=True)))
        if bucket is buckets[-1]:
            [work.wait() for _, work in works]
            param.grad.zero_()

    for bucket in buckets:
        for param in bucket:
            param.register_post_accumulate_grad_hook(partial(ready, bucket))


def only_the_first_step(model, buckets):
    missing, in_flight = [set(bucket) for bucket in buckets], []

    def ready(param):
        for each in missing:
            each.discard(param)
        while len(in_flight) < len(buckets) and not missing[len(in_flight)]:
            post(buckets[len(in_flight)], in_flight)
        if len(in_flight) == len(buckets):
            for bucket, (flat, work) in zip(buckets, in_flight, strict=True):
                work.wait()
                unpack(bucket, flat)

    for param in model.parameters():
        param.register_post_accumulate_grad_hook(ready)


def on_the_tensor(model):
    def ready(grad):
        if model.sync:
            dist.all_reduce(grad)
            grad = grad / dist.get_world_size()
        return grad

    for param in model.parameters():
        param.register_hook(ready)


def on_the_tensor_always(model):
    def ready(grad):
        dist.all_reduce(grad)
        return grad / dist.get_world_size()

    for param in model.parameters():
        param.register_hook(ready)


def in_every_micro_batch(model):
    def ready(param):
        dist.all_reduce(param.grad)
        param.grad /= dist.get_world_size()

    for param in model.parameters():
        param.register_post_accumulate_grad_hook(ready)


def of_the_parameter(model):
    def ready(param):
        if model.sync:
            dist.all_reduce(param.data)
            param.data /= dist.get_world_size()

    for param in model.parameters():
        param.register_post_accumulate_grad_hook(ready)


def ends_of(runs, sizes, ready_s, cost_s):
    end = 0.0
    for start, stop in runs:
        end = max(end, ready_s[stop - 1]) + cost_s(sum(sizes[start:stop]))
    return end


def one_bucket(sizes, ready_s, cost_s):
    return ends_of([(0, len(sizes))], sizes, ready_s, cost_s)


def one_each(sizes, ready_s, cost_s):
    return ends_of([(i, i + 1) for i in range(len(sizes))], sizes, ready_s, cost_s)


def equal_buckets(sizes, ready_s, cost_s):
    count = len(sizes)
    return min(
        ends_of([(i, min(i + k, count)) for i in range(0, count, k)], sizes, ready_s, cost_s)
        for k in range(1, count + 1)
    )


def ready_at_once(sizes, ready_s, cost_s):
    return cost_s(sum(sizes))


def sends_when_backward_is_over(sizes, ready_s, cost_s):
    return ready_s[-1] + cost_s(sum(sizes))


MUTANTS = {
    "10-overlap": [
        no_overlap,
        blocks_in_the_hook,
        in_forward_order,
        a_message_each,
        one_message_too_many,
        does_not_divide,
        never_unpacks,
        only_the_first_step,
    ],
    "10-hook": [on_the_tensor, on_the_tensor_always, in_every_micro_batch, of_the_parameter],
    "10-plan": [
        one_bucket,
        one_each,
        equal_buckets,
        ready_at_once,
        sends_when_backward_is_over,
    ],
}
