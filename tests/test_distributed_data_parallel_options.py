"""Hooks that carry the buckets, ranks with uneven inputs, state that is saved, other groups."""

import contextlib
import functools
import inspect
import io
import pickle

import pytest
import torch
import torch.distributed as dist
from ddp_parity import (
    SMALL_CAP_MB,
    Oddities,
    Ours,
    Stock,
    alone,
    assert_close,
    assert_none,
    assert_same_bits,
    batches,
    both,
    descend,
    loss_of,
    mean_loss,
    mlp,
    named,
    noted,
    ours,
    run_checks,
    shard,
    train,
)
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import (
    debugging_hooks,
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
)

from helpers import problems
from helpers.compare import assert_replicas_equal
from helpers.launch import run_function
from helpers.traffic import count_traffic

VIEWS = (False, True)


# -- hooks -------------------------------------------------------------------------------------


def power_sgd(group):
    return powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=1, start_powerSGD_iter=2)


def quantised(group, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Eight bits and back: a hook of two messages, and of what is to be done after them."""
    scale = bucket.buffer().abs().max()
    sent = (bucket.buffer() / scale * 127).round()
    work = dist.all_reduce(sent, group=group, async_op=True)
    scales = dist.all_reduce(scale, group=group, async_op=True)
    scales.wait()
    levels = 127 * group.size() ** 2
    return work.get_future().then(lambda future: future.value()[0] * scale / levels)


HOOKS = {
    "allreduce": (lambda group: group, default_hooks.allreduce_hook),
    "fp16": (lambda group: group, default_hooks.fp16_compress_hook),
    "fp16 wrapper": (
        lambda group: group,
        default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook),
    ),
    "PowerSGD": (power_sgd, powerSGD_hook.powerSGD_hook),
    "post-local SGD": (
        lambda group: post_localSGD_hook.PostLocalSGDState(
            group, dist.new_subgroups(group_size=1)[0], start_localSGD_iter=2
        ),
        post_localSGD_hook.post_localSGD_hook,
    ),
    "noop": (lambda group: None, debugging_hooks.noop_hook),
    "two messages": (lambda group: group, quantised),
}


def hooks_of_torch_work(ranks):
    make = functools.partial(mlp, dtype=torch.float32)
    for name, (make_state, hook) in HOOKS.items():
        notes = []
        for model in both(make, ranks.rank, gradient_as_bucket_view=True):
            model.register_comm_hook(make_state(dist.group.WORLD), hook)
            notes.append(train(model, ranks.rank, ranks.world_size, dtype=torch.float32))
        assert_same_bits(notes[1], notes[0], what=name)


def hooks_see_undivided_gradients(ranks):
    seen = []

    def hook(state, bucket):
        seen.append((bucket.index(), bucket.is_last(), bucket.buffer().clone()))
        assert [g.shape for g in bucket.gradients()] == [p.shape for p in bucket.parameters()]
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    model = ours(ranks)
    model.register_comm_hook(None, hook)
    loss_of(model, ranks).backward()
    assert [index for index, _, _ in seen] == list(range(len(model.buckets)))
    assert [is_last for _, is_last, _ in seen] == [False] * (len(seen) - 1) + [True]
    inner = mlp()
    loss_of(inner, ranks).backward()
    assert_close(noted(model.module), noted(inner))
    with pytest.raises(RuntimeError, match="communication hook"):
        model.register_comm_hook(None, hook)


def wrong_hooks_are_refused(ranks):
    for hook, error in ((3, TypeError), (lambda state: None, ValueError), (annotated, ValueError)):
        with pytest.raises(error, match="Communication hook"):
            ours(ranks).register_comm_hook(None, hook)


def annotated(state, bucket: int):
    return None


# -- uneven inputs -----------------------------------------------------------------------------


def join_like_torch(ranks):
    """Ranks with 2, 3, 4... batches; with buffers, no_sync, a hook; each option."""
    cases = {
        "plain": ({}, {}),
        "divide by those left": ({}, {"divide_by_initial_world_size": False}),
        "find unused": ({"find_unused_parameters": True}, {}),
        "views": ({"gradient_as_bucket_view": True}, {"divide_by_initial_world_size": False}),
        "static": ({"static_graph": True}, {}),
    }
    for name, (options, join) in cases.items():
        for is_first_longer in (False, True):
            notes = []
            for model in both(Oddities, ranks.rank, bucket_cap_mb=SMALL_CAP_MB, **options):
                rank = ranks.world_size - 1 - ranks.rank if is_first_longer else ranks.rank
                notes.append(uneven(model, ranks, range(2 + rank), join))
            assert_same_bits(notes[1], notes[0], what=f"{name}, first longer: {is_first_longer}")


def uneven(model, ranks, steps, options) -> list:
    with model.join(**options):
        for step in steps:
            quiet = model.no_sync() if step == 1 else contextlib.nullcontext()
            with quiet:
                loss_of(model, ranks, step).backward()
            if step != 1:
                descend(model)
                model.zero_grad()
    assert_replicas_equal(model.module)
    return [{name: x.clone() for name, x in model.module.state_dict().items()}]


def join_divides_by_the_ranks_that_are_left(ranks):
    """The last rank alone in the last step: its gradient is its own, or a world-th of it."""
    for by_initial in (True, False):
        model = Ours(nn.Linear(1, 1, bias=False).double())
        grads = []
        with model.join(divide_by_initial_world_size=by_initial):
            for _ in range(1 + (ranks.rank == ranks.world_size - 1)):
                model.zero_grad()
                model(torch.ones(1, 1, dtype=torch.float64)).sum().backward()
                grads.append(model.module.weight.grad.item())
        if len(grads) == 2:
            share = 1 / ranks.world_size if by_initial else 1.0
            assert grads == [1.0, share]


def join_may_throw(ranks):
    model = ours(ranks)
    steps = []

    def loop():
        with model.join(throw_on_early_termination=True):
            for step in range(1 + ranks.rank):
                loss_of(model, ranks, step).backward()
                steps.append(step)

    with pytest.raises(RuntimeError, match=r"exhausted (all )?inputs"):
        loop()
    assert steps == [0]


def join_may_be_off(ranks):
    model = ours(ranks)
    with model.join(enable=False), count_traffic() as traffic:
        loss_of(model, ranks).backward()
    assert traffic.collectives["all_reduce"] == len(model.buckets)
    assert_close(noted(model.module), alone([0]))


# -- state -------------------------------------------------------------------------------------


def state_goes_round(ranks):
    class Inner(nn.Module):
        def __init__(self, seed):
            super().__init__()
            self.module = mlp(seed)  # its name is the prefix's

        def forward(self, inputs):
            return self.module(inputs)

    model = ours(ranks, Inner)
    loss_of(model, ranks).backward()
    descend(model)
    state = model.state_dict()
    assert list(state) == [f"module.{name}" for name in Inner(0).state_dict()]
    other = ours(ranks, Inner)
    other.load_state_dict(state)
    nn.modules.utils.consume_prefix_in_state_dict_if_present(state, "module.")
    plain = Inner(3)
    plain.load_state_dict(state)
    for module in (other.module, plain):
        assert_same_bits([module.state_dict()], [model.module.state_dict()])


def a_wrapper_pickles(ranks):
    """Through pickle and torch.save; what comes back trains on, with its options."""
    model = ours(ranks, gradient_as_bucket_view=True, find_unused_parameters=True)
    loss_of(model, ranks).backward()
    descend(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for copy in (pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)):
        assert copy.find_unused_parameters
        assert copy.gradient_as_bucket_view
        copy.zero_grad()
        model.zero_grad()
        for each in (copy, model):
            loss_of(each, ranks, 1).backward()
        assert_same_bits([noted(copy.module)], [noted(model.module)])


def one_wrapper_after_another(ranks):
    """A module wrapped anew is averaged once a backward."""
    module = mlp(ranks.rank)
    for step in range(2):
        model = Ours(module, bucket_cap_mb=SMALL_CAP_MB)
        module.zero_grad()
        with count_traffic() as traffic:
            loss_of(model, ranks, step).backward()
        assert traffic.collectives["all_reduce"] == len(model.buckets)
        assert_close(noted(module), alone([step]))


def models_that_differ_are_refused(ranks):
    sizes = (64, 10 + ranks.rank, 10)
    with pytest.raises(ValueError, match=r"rank 1 has .*\(11.* where rank 0 has .*\(10"):
        Ours(problems.make_mlp(sizes))


def wrong_arguments_are_refused(ranks):
    with pytest.raises(RuntimeError, match=r"requires? a gradient"):
        Ours(nn.Linear(1, 1).requires_grad_(False))
    for options, error in (
        ({"mixed_precision": object()}, NotImplementedError),
        ({"device_ids": [0]}, ValueError),
        ({"plan": lambda parameters: [parameters[:1]]}, ValueError),
    ):
        with pytest.raises(error):
            Ours(mlp(), **options)


def signature_is_torchs(ranks):
    stock, mine = (
        list(inspect.signature(wrap.__init__).parameters.values()) for wrap in (Stock, Ours)
    )
    assert [(p.name, p.default) for p in mine[: len(stock)]] == [(p.name, p.default) for p in stock]
    extra = mine[len(stock) :]
    assert [p.name for p in extra] == ["all_reduce", "plan"]
    assert {p.kind for p in extra} == {inspect.Parameter.KEYWORD_ONLY}
    positional = Ours(mlp(), None, None, 0, None, True, None, 7)
    assert len(positional.buckets) == 1


# -- worlds ------------------------------------------------------------------------------------


def subgroups(ranks):
    """Ranks 1 and 2 of three train together, rank 0 by itself, in groups of their own."""
    pair, single = dist.new_group([1, 2]), dist.new_group([0])
    group, size = (pair, 2) if ranks.rank else (single, 1)
    model = Ours(mlp(ranks.rank), process_group=group, bucket_cap_mb=SMALL_CAP_MB)
    place = dist.get_rank(group)
    found = train(model, place, size)
    seed = 1 if ranks.rank else 0
    for note, expected in zip(found, train(mlp(seed)), strict=True):
        assert_close(note, expected)


def another_group_later(ranks):
    """`_update_process_group`, which elastic training calls: from three ranks to two."""
    model = ours(ranks)
    loss_of(model, ranks).backward()
    pair = dist.new_group([0, 1])
    if ranks.rank < 2:
        model._update_process_group(pair)
        model.zero_grad()
        batch = batches()[1]
        part = shard(batch, ranks.rank, 2)
        mean_loss(model, part, len(batch[1]), 2).backward()
        assert_close(noted(model.module), alone([1]))


def one_rank(ranks):
    for views in VIEWS:
        found = train(Ours(mlp(), gradient_as_bucket_view=views, bucket_cap_mb=SMALL_CAP_MB))
        for note, expected in zip(found, train(mlp()), strict=True):
            assert_close(note, expected)


CHECKS = {
    1: named(one_rank),
    2: named(
        hooks_of_torch_work, hooks_see_undivided_gradients, wrong_hooks_are_refused,
        join_like_torch, join_divides_by_the_ranks_that_are_left, join_may_throw, join_may_be_off,
        state_goes_round, a_wrapper_pickles, one_wrapper_after_another,
        models_that_differ_are_refused, wrong_arguments_are_refused, signature_is_torchs,
    ),
    3: named(subgroups, another_group_later, join_divides_by_the_ranks_that_are_left),
}  # fmt: skip


@pytest.mark.parametrize("world_size", CHECKS)
def test_options(world_size):
    assert_none(run_function(run_checks, CHECKS[world_size], nproc_per_node=world_size))
