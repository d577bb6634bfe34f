"""What the class owes beside gradients: no_sync, unused parameters, joins, hooks, state, groups."""

import collections
import contextlib
import functools
import io
import pickle

import pytest
import torch
import torch.distributed as dist
from ddp_parity import (
    SMALL_CAP_MB,
    NoGradient,
    Oddities,
    Ours,
    PartlyUsed,
    Stock,
    assert_same_bits,
    batches,
    both,
    descend,
    mean_loss,
    mlp,
    noted,
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
from torch.utils.checkpoint import checkpoint

from helpers import problems
from helpers.compare import assert_replicas_equal, relative_error
from helpers.launch import run_function
from helpers.traffic import count_traffic

VIEWS = (False, True)


def ours(ranks, make=mlp, **options):
    return Ours(make(ranks.rank), bucket_cap_mb=SMALL_CAP_MB, **options)


def loss_of(model, ranks, step: int = 0):
    batch = batches()[step]
    part = shard(batch, ranks.rank, ranks.world_size)
    return mean_loss(model, part, len(batch[1]), ranks.world_size)


def square(seed: int) -> nn.Module:
    return problems.make_mlp((10, 10), seed=seed, dtype=torch.float64)


def alone(steps) -> dict:
    """The gradients of one process on these batches, each a mean, summed."""
    model = mlp()
    for step in steps:
        mean_loss(model, batches()[step], len(batches()[step][1]), 1).backward()
    return noted(model)


def assert_close(found, expected, what: str = "") -> None:
    error = relative_error(found, expected)
    assert error < 1e-12, f"{what}: {error!r}"


# -- no_sync -----------------------------------------------------------------------------------


def no_sync_accumulates(ranks):
    """Windows of one to three micro-batches, gradients in the buckets or not, kept or dropped."""
    for views, set_to_none in ((False, True), (True, True), (True, False)):
        model = ours(ranks, gradient_as_bucket_view=views)
        for window in ((0,), (1, 2, 3), (2, 3)):
            model.zero_grad(set_to_none=set_to_none)
            with count_traffic() as traffic:
                with model.no_sync():
                    for step in window[:-1]:
                        loss_of(model, ranks, step).backward()
                assert not traffic.collectives["all_reduce"]
                loss_of(model, ranks, window[-1]).backward()
            assert traffic.collectives["all_reduce"] == len(model.buckets)
            assert_close(noted(model.module), alone(window), f"{views} {set_to_none} {window}")


def no_sync_is_nested_and_survives_exceptions(ranks):
    model = ours(ranks)
    with model.no_sync():
        with model.no_sync():
            assert not model.require_backward_grad_sync
        assert not model.require_backward_grad_sync
    with pytest.raises(ZeroDivisionError), model.no_sync():
        raise ZeroDivisionError
    assert model.require_backward_grad_sync
    loss_of(model, ranks).backward()
    assert_close(noted(model.module), alone([0]))


def the_flag_is_read_in_forward(ranks):
    """As in torch: what counts is where the forward was, not the backward."""
    for wrap in (Stock, Ours):
        model = wrap(mlp(ranks.rank))
        loss = loss_of(model, ranks)
        with model.no_sync():
            loss.backward()
        assert_close(noted(model.module), alone([0]), f"{wrap.__module__}: forward outside")
        model.zero_grad()
        with model.no_sync():
            loss = loss_of(model, ranks)
        loss.backward()
        assert relative_error(noted(model.module), alone([0])) > 0.1


def several_forwards_before_a_backward(ranks):
    """A GAN's step with BatchNorm: the second forward broadcasts what the first has used."""
    make = functools.partial(problems.make_conv, norm="batch", dtype=torch.float64)
    for views in VIEWS:
        notes = []
        for model in both(lambda seed: make(seed=seed), ranks.rank, gradient_as_bucket_view=views):
            for step in (0, 1):
                (loss_of(model, ranks, step) + loss_of(model, ranks, step + 1)).backward()
                descend(model)
            notes.append([noted(model.module)])
        assert_same_bits(*notes)


def two_backwards_of_two_forwards(ranks):
    """Each backward is synchronised, the second on top of the first's mean, as in torch."""
    notes = []
    for model in both(mlp, ranks.rank):
        for step in range(3):
            loss_of(model, ranks, step).backward()
        notes.append([noted(model.module)])
    assert_same_bits(*notes)


# -- parameters --------------------------------------------------------------------------------


def unused_parameters_are_named(ranks):
    model = ours(ranks, PartlyUsed)
    loss_of(model, ranks, 0).backward()
    with pytest.raises(RuntimeError) as caught:
        loss_of(model, ranks, 1)
    for part in ("by_rank.0.weight", "never.0.bias", "find_unused_parameters=True"):
        assert part in str(caught.value)
    assert "by_batch" not in str(caught.value)


def unused_parameters_keep_what_they_had(ranks):
    """What no rank used keeps its gradient, None or not; what one rank used is a mean on all."""
    for views in VIEWS:
        model = ours(ranks, PartlyUsed, find_unused_parameters=True, gradient_as_bucket_view=views)
        model.module.rank = ranks.rank
        loss_of(model, ranks, 0).backward()
        assert model.module.never[0].weight.grad is None
        assert model.module.by_rank[0].weight.grad.abs().sum() > 0
        assert_replicas_equal(gradients_as_module(model))
        before = model.module.by_batch[0].weight.grad.clone()
        loss_of(model, ranks, 1).backward()
        assert torch.equal(model.module.by_batch[0].weight.grad, before)


def gradients_as_module(model) -> nn.Module:
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return nn.ParameterList([nn.Parameter(grad.clone()) for grad in grads])


def outputs_of_any_kind(ranks):
    """Unused outputs in tuples, dicts and dataclasses; structures come back as they are."""
    Point = collections.namedtuple("Point", "x y")

    class Two(nn.Module):
        def __init__(self, seed, kind):
            super().__init__()
            self.a, self.b, self.kind = mlp(seed), mlp(seed + 1), kind

        def forward(self, inputs):
            return self.kind(self.a(inputs), self.b(inputs))

    kinds = (Point, lambda a, b: {"x": a, "y": [b, "text"]}, lambda a, b: (a, (b, None)))
    for kind in kinds:
        expected = None
        for wrap, option in ((Stock, FIND), (Ours, FIND)):
            model = wrap(Two(ranks.rank, kind), **option)
            for step in range(3):
                out = model(batches()[step][0][ranks.rank :: ranks.world_size])
                assert not hasattr(kind, "_fields") or isinstance(out, kind)
                (out["x"] if isinstance(out, dict) else out[0]).square().mean().backward()
            found = [noted(model.module)]
            assert found[0]["b.0.weight"] is None
            expected = expected or found
            assert_same_bits(found, expected, what=f"{wrap.__module__} {option}")


FIND = {"find_unused_parameters": True}


def frozen_and_thawed_after_wrapping(ranks):
    """Freezing a layer does not stop it, and a thawed one is averaged from the next forward on."""
    model = ours(ranks)
    model.module[0].requires_grad_(False)
    loss_of(model, ranks, 0).backward()
    assert model.module[0].weight.grad is None
    model.zero_grad()
    model.module[0].requires_grad_(True)
    for step in (1, 2):
        model.zero_grad()
        loss_of(model, ranks, step).backward()
        assert_close(noted(model.module), alone([step]))


def gradients_replaced_by_the_user(ranks):
    """Clipped, scaled, replaced, deleted one by one, moved out of the buckets: it goes on."""
    for views in VIEWS:
        model = ours(ranks, gradient_as_bucket_view=views)
        weight, bias = model.module[0].weight, model.module[0].bias
        loss_of(model, ranks, 0).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        weight.grad = torch.zeros_like(weight)
        bias.grad = None
        model.module[2].weight.grad.zero_()
        model.module[2].bias.grad = torch.zeros(24, dtype=torch.float64)
        for parameter in model.module[4].parameters():
            parameter.grad = parameter.grad.clone().zero_()
        loss_of(model, ranks, 1).backward()
        assert_close(noted(model.module), alone([1]), f"views {views}")


def a_static_graph_with_reentrant_checkpoints(ranks):
    """Torch's documented use: a shared block under checkpoints, whose gradient comes in pieces."""

    class Shared(nn.Module):
        def __init__(self, seed):
            super().__init__()
            self.first, self.block, self.unused = mlp(seed), square(seed), square(seed)

        def forward(self, inputs):
            hidden = self.first(inputs)
            for _ in range(2):
                hidden = checkpoint(self.block, hidden, use_reentrant=True)
            return hidden

    notes = []
    for model in both(Shared, ranks.rank, static_graph=True, bucket_cap_mb=SMALL_CAP_MB):
        notes.append(train(model, ranks.rank, ranks.world_size))
    assert_same_bits(notes[1], notes[0])


def outputs_changed_in_place(ranks):
    """`loss /= K` and in-place activations on the outputs."""
    for options in ({}, {"find_unused_parameters": True}, {"static_graph": True}):
        model = ours(ranks, **options)
        for step in (0, 1):
            model.zero_grad()
            loss = loss_of(lambda x, model=model: model(x).mul_(1.0), ranks, step)
            loss /= 2
            loss.backward()
            expected = {name: grad / 2 for name, grad in alone([step]).items()}
            assert_close(noted(model.module), expected, str(options))


def a_backward_that_failed(ranks):
    """The error comes out as it is, and the next forward says that gradients are missing."""

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            raise ArithmeticError("in backward")

    class Model(nn.Module):
        def __init__(self, seed):
            super().__init__()
            self.first, self.last = mlp(seed), square(seed)

        def forward(self, inputs):
            return self.last(Fails.apply(self.first(inputs)))

    model = ours(ranks, Model)
    with pytest.raises(ArithmeticError):
        loss_of(model, ranks).backward()
    with pytest.raises(RuntimeError, match=r"first\.0\.weight"):
        loss_of(model, ranks)


def undefined_gradients_stay_undefined(ranks):
    class Reached(nn.Module):
        def __init__(self, seed):
            super().__init__()
            self.body, self.reached = mlp(seed), nn.Parameter(torch.ones(10).double())

        def forward(self, inputs):
            return self.body(inputs) * NoGradient.apply(self.reached)

    for views in VIEWS:
        options = {"find_unused_parameters": True, "gradient_as_bucket_view": views}
        stock, mine = (
            train(model, ranks.rank, ranks.world_size)
            for model in both(Reached, ranks.rank, **options)
        )
        assert_same_bits(mine, stock)


# -- buffers -----------------------------------------------------------------------------------


class Counting(nn.Module):
    def __init__(self, seed: int):
        super().__init__()
        self.body = mlp(seed)
        self.register_buffer("calls", torch.tensor(10 * seed))
        self.register_buffer("mean", torch.tensor(0.5 + seed).double())

    def forward(self, inputs):
        self.calls += 1
        return self.body(inputs) * self.mean


def buffers_follow_the_first_rank(ranks):
    model = ours(ranks, Counting)
    for step in range(3):
        model.module.calls += ranks.rank
        loss_of(model, ranks, step).backward()
        assert model.module.calls == step + 1
    with torch.no_grad():
        model.module.mean += ranks.rank
        loss_of(model, ranks)  # in evaluation too
    assert_replicas_equal(model.module)


def buffers_are_left_alone_where_asked(ranks):
    for options, start in (({"forward_sync_buffers": False}, 0), (OLD, 10 * ranks.rank)):
        with contextlib.suppress(FutureWarning), torch.no_grad():
            model = ours(ranks, Counting, **options)
        model.module.calls += ranks.rank
        loss_of(model, ranks).backward()
        assert model.module.calls == start + ranks.rank + 1, options


OLD = {"broadcast_buffers": False}


def no_initial_broadcast_where_asked(ranks):
    model = ours(ranks, init_sync=False)
    assert torch.equal(model.module[0].weight, mlp(ranks.rank)[0].weight)


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
        ({"bucket_cap_mb": 0}, ValueError),
        ({"plan": lambda parameters: [parameters[:1]]}, ValueError),
    ):
        with pytest.raises(error):
            Ours(mlp(), **options)


def signature_is_torchs(ranks):
    import inspect

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


TWO = [
    no_sync_accumulates, no_sync_is_nested_and_survives_exceptions, the_flag_is_read_in_forward,
    several_forwards_before_a_backward, two_backwards_of_two_forwards, unused_parameters_are_named,
    unused_parameters_keep_what_they_had, outputs_of_any_kind, frozen_and_thawed_after_wrapping,
    gradients_replaced_by_the_user, a_static_graph_with_reentrant_checkpoints,
    outputs_changed_in_place, a_backward_that_failed, undefined_gradients_stay_undefined,
    buffers_follow_the_first_rank, buffers_are_left_alone_where_asked,
    no_initial_broadcast_where_asked, hooks_of_torch_work, hooks_see_undivided_gradients,
    wrong_hooks_are_refused, join_like_torch, join_divides_by_the_ranks_that_are_left,
    join_may_throw, join_may_be_off, state_goes_round, a_wrapper_pickles,
    one_wrapper_after_another, models_that_differ_are_refused, wrong_arguments_are_refused,
    signature_is_torchs,
]  # fmt: skip
THREE = [
    subgroups, another_group_later, no_sync_accumulates, join_divides_by_the_ranks_that_are_left,
]  # fmt: skip


def duty_checks(world_size: int) -> dict:
    checks = {1: [one_rank, no_sync_accumulates], 2: TWO, 3: THREE}[world_size]
    return {check.__name__: check for check in checks}


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_duties(world_size):
    for failed in run_function(run_checks, duty_checks(world_size), nproc_per_node=world_size):
        assert not failed, "\n".join(f"{name}\n{text}" for name, text in failed.items())
