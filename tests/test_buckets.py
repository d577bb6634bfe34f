"""Buckets as torch cuts them, views as torch's reducer lays them out, plans that no cap beats."""

import itertools
import random
import re

import pytest
import torch
import torch.distributed as dist
from torch import nn

from helpers import cost_model, problems
from helpers.buckets import Bucket, observe_ready_s, plan_buckets
from helpers.data_parallel import DataParallelFlat, DataParallelNaive
from helpers.launch import run_function
from helpers.link import Link
from helpers.process_group import process_group
from helpers.traffic import count_traffic

MIB = 2**20


def indices(plan, parameters):
    at = {parameter: index for index, parameter in enumerate(parameters)}
    return [[at[parameter] for parameter in bucket] for bucket in plan]


def torch_s(parameters, caps):
    """torch's own buckets; what it never closed comes in no order there, and so sorted here."""
    count = len(parameters)
    found, _ = dist._compute_bucket_assignment_by_size(
        parameters, caps, [False] * count, list(range(count))
    )
    return found


def drawn(generator: random.Random, dtypes):
    lengths = (0, 1, 5, 17, 100, 1000)
    return [
        torch.empty(generator.choice(lengths), dtype=generator.choice(dtypes))
        for _ in range(generator.randint(1, 20))
    ]


@pytest.mark.parametrize(
    "dtypes", [(torch.float32,), (torch.float32, torch.bfloat16, torch.float64)], ids=len
)
def test_soft_caps_are_torch_s(dtypes):
    generator = random.Random(0)
    num_closed = 0
    for _ in range(300):
        parameters = drawn(generator, dtypes)
        caps = [generator.choice((1, 10, 100, 400, 4000)) for _ in range(generator.randint(1, 4))]
        mine = indices(plan_buckets(parameters, caps), parameters)
        theirs = torch_s(parameters, caps)
        kinds = len({p.dtype for p in parameters})
        same = len(mine) if kinds == 1 else max(0, len(mine) - kinds)  # the rest was never closed
        assert mine[:same] == theirs[:same]
        assert sorted(mine) == sorted(theirs)
        num_closed += same
    assert num_closed > 300  # the control: there were buckets to compare


def test_the_layout_of_chapter_10():
    """Last gradient first; the first bucket is small, the cap is soft, what is left comes last."""
    parameters = [torch.empty(MIB // 8) for _ in range(60)]  # half a MiB each
    assert list(map(len, plan_buckets(parameters))) == [2, 50, 8]
    assert list(map(len, plan_buckets(parameters, 25 * MIB))) == [50, 10]
    assert list(map(len, plan_buckets(parameters, 0.7 * MIB)))[:2] == [2, 2]
    assert list(map(len, plan_buckets(parameters, 10 * MIB, MIB))) == [2, 20, 20, 18]
    assert list(map(len, plan_buckets(parameters, [MIB, 20 * MIB]))) == [2, 40, 18]
    assert plan_buckets([]) == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"cap_bytes": 0}, "cap: found 0, expected bytes, more than 0"),
        ({"cap_bytes": [MIB, float("nan")]}, "cap: found nan"),
        ({"cap_bytes": "25"}, "cap: found '2'"),
        ({"cap_bytes": []}, "cap_bytes: found no caps"),
        ({"cap_bytes": MIB, "link": Link(1e-3, 1.0, 2)}, "found caps and a link"),
        ({"link": Link(1e-3, 1.0)}, "world_size: found None"),
        ({"link": Link(1e-3, 1.0, 2), "ready_s": [1.0]}, "ready_s: found 1 times, expected 3"),
        ({"link": Link(1e-3, 1.0, 2), "ready_s": [1.0, 2.0, -1.0]}, "ready_s: found -1.0"),
    ],
)
def test_what_cannot_be_planned_is_refused(options, says):
    if options.get("ready_s") == [1.0, 2.0, -1.0]:
        options = {**options, "ready_s": [-1.0, 2.0, 2.0]}
    with pytest.raises(ValueError, match=re.escape(says)):
        plan_buckets([torch.empty(3) for _ in range(3)], **options)


def test_views_are_laid_out_as_the_parameters_are():
    conv = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
    gaps = torch.empty(4, 6)[:, ::2]
    parameters = [conv.weight, conv.bias, torch.empty(2, 5).t(), gaps, torch.empty(()), gaps[:0]]
    bucket = Bucket(parameters)
    for parameter, view, offset in zip(parameters, bucket.views, bucket.offsets, strict=True):
        fills = torch.ops.aten.is_non_overlapping_and_dense(parameter)
        assert view.stride() == (parameter.stride() if fills else torch.empty(view.shape).stride())
        assert view.shape == parameter.shape
        assert view.storage_offset() == offset
        view.copy_(parameter.detach())
    assert bucket.offsets == [0, 216, 224, 234, 246, 247]
    assert bucket.size_bytes == 247 * 4
    assert torch.equal(bucket.views[0], conv.weight)  # none overwrote another
    assert torch.equal(bucket.views[3], gaps)


def test_layouts_of_random_strides():
    generator = random.Random(1)
    for _ in range(200):
        shape = [generator.choice((1, 2, 3)) for _ in range(4)]
        tensor = torch.empty(shape).permute(generator.sample(range(4), 4))
        tensor = tensor[..., : generator.choice((1, 3))]
        fills = torch.ops.aten.is_non_overlapping_and_dense(tensor)
        expected = tensor.stride() if fills else torch.empty(tensor.shape).stride()
        assert Bucket([tensor]).views[0].stride() == expected


def test_a_bucket_has_one_kind():
    with pytest.raises(ValueError, match=r"found \['torch.float32 on cpu', 'torch.float64 on cpu'"):
        Bucket([torch.empty(1), torch.empty(1).double()])
    with pytest.raises(ValueError, match="found no parameters, expected one dtype"):
        Bucket([])


LINKS = {
    "latency": Link(2e-3, 0.5, world_size=8),
    "balanced": Link(0.4e-3, 0.125, world_size=8),
    "bandwidth": Link(0.05e-3, 0.05, world_size=4),
}


def end_s(plan, parameters, ready_s, link):
    """When the last all-reduce of the plan is predicted to end."""
    at = dict(zip(parameters, ready_s, strict=True))
    sizes = [sum(p.numel() * p.element_size() for p in bucket) for bucket in plan]
    ready = [max(at[p] for p in bucket) for bucket in plan]
    return cost_model.step_s(sizes, ready, 2, link)


def backward_times(generator: random.Random, count: int):
    parameters = [torch.empty(generator.choice((100, 5_000, 60_000))) for _ in range(count)]
    steps = [generator.choice((1e-4, 2e-3, 1e-2)) for _ in range(count)]
    return parameters, list(itertools.accumulate(steps))


@pytest.mark.parametrize("name", LINKS)
def test_no_cap_beats_the_plan_for_a_link(name):
    link, generator = LINKS[name], random.Random(2)
    for _ in range(20):
        parameters, ready_s = backward_times(generator, 30)
        plan = plan_buckets(parameters, link=link, ready_s=ready_s)
        assert sorted(itertools.chain(*indices(plan, parameters))) == list(range(30))
        best = end_s(plan, parameters, ready_s, link)
        for cap in [2**k for k in range(8, 24)]:
            for first in (None, MIB, cap / 4):
                swept = plan_buckets(parameters, cap, first)
                assert best <= end_s(swept, parameters, ready_s, link) + 1e-9
        sizes = [p.numel() * p.element_size() for p in parameters]
        assert best >= cost_model.overlap_lower_bound_s(sizes, ready_s, 2, link) - 1e-9


@pytest.mark.parametrize("name", LINKS)
def test_the_plan_is_the_best_of_all_plans(name):
    """Every way to cut eight gradients into runs, one by one."""
    link, generator = LINKS[name], random.Random(3)
    for _ in range(10):
        parameters, ready_s = backward_times(generator, 8)
        ends = []
        for cuts in itertools.product((False, True), repeat=7):
            plan = [[parameters[0]]]
            for parameter, is_cut in zip(parameters[1:], cuts, strict=True):
                plan.append([parameter]) if is_cut else plan[-1].append(parameter)
            ends.append(end_s(plan, parameters, ready_s, link))
        plan = plan_buckets(parameters, link=link, ready_s=ready_s)
        assert end_s(plan, parameters, ready_s, link) == pytest.approx(min(ends), abs=1e-8)


def test_a_plan_for_a_link_keeps_kinds_apart_and_sends_in_order_of_readiness():
    link = LINKS["balanced"]
    dtypes = itertools.cycle((torch.float32, torch.bfloat16))
    parameters = [torch.empty(20_000, dtype=next(dtypes)) for _ in range(24)]
    ready_s = [6e-3 * (index + 1) for index in range(24)]
    found = indices(plan_buckets(parameters, link=link, ready_s=ready_s), parameters)
    assert all(len({index % 2 for index in bucket}) == 1 for bucket in found)
    assert sorted(itertools.chain(*found)) == list(range(24))
    assert [bucket[-1] for bucket in found] == sorted(bucket[-1] for bucket in found)


def test_a_plan_for_a_link_without_times_and_of_a_world_of_one():
    parameters = [torch.empty(60_000) for _ in range(24)]
    sizes = list(map(len, plan_buckets(parameters, link=LINKS["balanced"])))
    assert len(sizes) > 2
    assert sum(sizes) == 24
    free = plan_buckets(parameters, link=Link(1e-3, 1.0), world_size=1)
    assert sum(map(len, free)) == 24


def test_readiness_is_observed_in_the_order_of_backward():
    model = problems.make_sleeping(4, 400, forward_s=0, backward_s=5e-3)
    unused, frozen = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1), False)
    loss = model(torch.ones(2)).sum()
    parameters = [*model.layers, unused, frozen]
    order, ready_s = observe_ready_s(parameters, loss.backward)
    assert list(map(id, order)) == [*map(id, list(model.layers)[::-1]), id(unused)]
    assert ready_s == sorted(ready_s)
    # The first layer may begin up to half of its time early: see SleepingModel.
    assert all(ready >= 5e-3 * (k + 1) - 2.5e-3 for k, ready in enumerate(ready_s[:4]))
    loss = model(torch.ones(2)).sum()
    loss.backward()  # no hook is left behind
    assert len(order) == 5


def test_readiness_of_a_shared_parameter_is_its_last_part():
    shared, other = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    loss = ((shared * 2).sum() + other).sum() * shared.sum()
    order, _ = observe_ready_s([shared, other], loss.backward)
    assert {*map(id, order)} == {id(shared), id(other)}


class Oddities(nn.Module):
    """Two dtypes, a frozen and an unused parameter, strides, one that only rank 0 uses."""

    def __init__(self, rank: int):
        super().__init__()
        self.body = problems.make_mlp((64, 24, 10), seed=rank, dtype=torch.float64)
        self.single = nn.Parameter(torch.full((10,), 0.5))
        self.turned = nn.Parameter(torch.ones(10, 64, dtype=torch.float64).t())
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.unused, self.of_rank_0 = (nn.Parameter(torch.ones(10).double()) for _ in range(2))

    def forward(self, inputs):
        outputs = self.body(inputs) * self.single + inputs @ self.turned
        return outputs + self.of_rank_0 if dist.get_rank() == 0 else outputs


def averaged():
    with process_group(timeout_s=20) as ranks:
        found = []
        for build in (DataParallelNaive, DataParallelFlat):
            model = build(Oddities(ranks.rank))
            images, labels = problems.digits(torch.float64).train
            part = images[ranks.rank :: 2][:16], labels[ranks.rank :: 2][:16]
            problems.classification_loss_sum(model, part).backward()
            with count_traffic() as traffic:
                model.average_gradients()
            grads = {name: p.grad for name, p in model.module.named_parameters()}
            found.append((grads, traffic.collectives["all_reduce"], traffic.payload_bytes))
        return found


def test_flat_averages_as_naive_does_in_one_message_a_kind():
    for naive, flat in run_function(averaged, nproc_per_node=2):
        for name, grad in naive[0].items():
            assert (grad is None) == (flat[0][name] is None) == (name in ("unused", "frozen"))
            assert grad is None or torch.equal(grad, flat[0][name])
        assert (naive[1], flat[1]) == (1 + 7, 1 + 2)  # the first tells who has which gradient
        assert naive[2] == flat[2]
