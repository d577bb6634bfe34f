"""What the class owes beside gradients: no_sync, parameters of every kind, buffers."""

import collections
import contextlib
import copy
import functools

import pytest
import torch
from ddp_parity import (
    SMALL_CAP_MB,
    NoGradient,
    Ours,
    PartlyUsed,
    Stock,
    alone,
    assert_close,
    assert_none,
    assert_same_bits,
    batches,
    both,
    descend,
    loss_of,
    mlp,
    named,
    noted,
    ours,
    run_checks,
    train,
)
from torch import nn
from torch.utils.checkpoint import checkpoint

from helpers import problems
from helpers.compare import assert_replicas_equal, relative_error
from helpers.launch import run_function
from helpers.traffic import count_traffic

VIEWS = (False, True)


def square(seed: int) -> nn.Module:
    return problems.make_mlp((10, 10), seed=seed, dtype=torch.float64)


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


# -- models of other kinds ---------------------------------------------------------------------


class WithoutElements(nn.Module):
    def __init__(self, seed):
        super().__init__()
        self.body, self.empty = mlp(seed, torch.float32), nn.Parameter(torch.zeros(0, 4))

    def forward(self, inputs):
        return self.body(inputs) + self.empty.sum()


class Complex(nn.Module):
    def __init__(self, seed):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        weight = torch.randn((64, 10), generator=generator, dtype=torch.complex64)
        self.weight = nn.Parameter(weight)

    def forward(self, inputs):
        return (inputs.to(self.weight.dtype) @ self.weight).abs()


class Checkpointed(nn.Module):
    """One layer twice, each under a checkpoint, which runs it again in backward."""

    def __init__(self, seed):
        super().__init__()
        self.first, self.block = mlp(seed, torch.float32), square(seed).float()

    def forward(self, inputs):
        hidden = checkpoint(self.block, self.first(inputs), use_reentrant=False)
        return checkpoint(self.block, hidden, use_reentrant=False)


class Autocast(nn.Module):
    def __init__(self, seed):
        super().__init__()
        self.body = mlp(seed, torch.float32)

    def forward(self, inputs):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.body(inputs)


class Half(nn.Module):
    def __init__(self, seed):
        super().__init__()
        self.body = mlp(seed, torch.float16)

    def forward(self, inputs):
        return self.body(inputs.half())


def models_of_other_kinds(ranks):
    """As torch's class treats them, in bits; copied deeply, too."""
    for make in (WithoutElements, Complex, Checkpointed, Autocast, Half):
        for views in VIEWS:
            options = {"gradient_as_bucket_view": views, "bucket_cap_mb": SMALL_CAP_MB}
            stock, mine = (
                train(copy.deepcopy(model), ranks.rank, ranks.world_size, dtype=torch.float32)
                for model in both(make, ranks.rank, **options)
            )
            assert_same_bits(mine, stock, what=make.__name__)


def a_gradient_penalty(ranks):
    """Backward through a backward."""
    notes = []
    for model in both(mlp, ranks.rank):
        inputs = batches()[0][0][ranks.rank :: ranks.world_size].clone().requires_grad_()
        outputs = model(inputs).square().sum()
        (grad,) = torch.autograd.grad(outputs, inputs, create_graph=True)
        (outputs + grad.square().sum()).backward()
        notes.append([noted(model.module)])
    assert_same_bits(*notes)


def a_forward_on_one_rank_only(ranks):
    """An evaluation without gradients or buffers sends nothing; with buffers use the module."""
    model = ours(ranks)
    if ranks.rank == 0:
        with torch.no_grad(), count_traffic() as traffic:
            model(batches()[0][0])
        assert not traffic.collectives
    loss_of(model, ranks).backward()
    assert_close(noted(model.module), alone([0]))


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


CHECKS = {
    1: named(no_sync_accumulates),
    2: named(
        no_sync_accumulates, no_sync_is_nested_and_survives_exceptions, the_flag_is_read_in_forward,
        several_forwards_before_a_backward, two_backwards_of_two_forwards,
        unused_parameters_are_named, unused_parameters_keep_what_they_had, outputs_of_any_kind,
        frozen_and_thawed_after_wrapping, gradients_replaced_by_the_user,
        a_static_graph_with_reentrant_checkpoints, outputs_changed_in_place,
        a_backward_that_failed, undefined_gradients_stay_undefined, models_of_other_kinds,
        a_gradient_penalty, a_forward_on_one_rank_only, buffers_follow_the_first_rank,
        buffers_are_left_alone_where_asked, no_initial_broadcast_where_asked,
    ),
    3: named(no_sync_accumulates),
}  # fmt: skip


@pytest.mark.parametrize("world_size", CHECKS)
def test_duties(world_size):
    assert_none(run_function(run_checks, CHECKS[world_size], nproc_per_node=world_size))
