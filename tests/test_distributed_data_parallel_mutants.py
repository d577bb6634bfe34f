"""Versions of the class that someone could write, each refused by a check that ours passes."""

import contextlib
import dataclasses
import functools
import traceback
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ddp_parity import (
    SMALL_CAP_MB,
    Ours,
    PartlyUsed,
    batches,
    loss_of,
    mean_loss,
    mlp,
    noted,
    train,
)
from torch import nn

from helpers.compare import assert_replicas_equal, relative_error
from helpers.data_parallel import reducer as hot_path
from helpers.launch import run_function
from helpers.problems import make_sleeping
from helpers.process_group import process_group
from helpers.traffic import count_traffic

# -- checks ------------------------------------------------------------------------------------


def is_one_process(wrap, ranks):
    """Each step's gradients, and the model after, from other numbers on each rank."""
    found = train(wrap(mlp(ranks.rank), bucket_cap_mb=SMALL_CAP_MB), ranks.rank, ranks.world_size)
    for step, (note, expected) in enumerate(zip(found, train(mlp()), strict=True)):
        assert relative_error(note, expected) < 1e-12, f"step {step}"


def assert_gradients_equal(model) -> None:
    grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    assert_replicas_equal(nn.ParameterList(map(nn.Parameter, grads)), model.process_group)


class WithBuffer(nn.Module):
    def __init__(self, seed: int):
        super().__init__()
        self.body = mlp(seed)
        self.register_buffer("offset", torch.tensor(0.25).double())

    def forward(self, inputs):
        return self.body(inputs - self.offset)


def keeps_buffers_alike(wrap, ranks):
    """Each rank moves its buffer before a forward; the first rank's is what counts."""
    model = wrap(WithBuffer(ranks.rank))
    for step in range(2):
        model.module.offset += ranks.rank
        loss_of(model, ranks, step).backward()
        assert_replicas_equal(model.module, model.process_group)
        assert model.module.offset == 0.25


def finds_unused_parameters(wrap, ranks):
    """Which are used changes with rank and step, and no step waits for those that are not."""
    model = wrap(PartlyUsed(ranks.rank), find_unused_parameters=True, bucket_cap_mb=SMALL_CAP_MB)
    alone = PartlyUsed(0)
    model.module.rank = alone.rank = ranks.rank
    for step in range(3):
        model.zero_grad()
        alone.zero_grad()
        loss_of(model, ranks, step).backward()
        mean_loss(alone, batches()[step], len(batches()[step][1]), 1).backward()
        found, expected = (noted(each) for each in (model.module, alone))
        for name, grad in expected.items():
            if not name.startswith("by_rank") and grad is not None:
                assert found[name] is not None, name
                if name.startswith("by_batch"):
                    assert found[name].abs().sum() > 0, name
        assert_gradients_equal(model)


def divides_by_those_that_are_left(wrap, ranks):
    """The last rank is alone in the last step, and its gradient is its own."""
    model = wrap(nn.Linear(1, 1, bias=False).double())
    grads = []
    with model.join(divide_by_initial_world_size=False):
        for _ in range(1 + (ranks.rank == ranks.world_size - 1)):
            model.zero_grad()
            model(torch.ones(1, 1, dtype=torch.float64)).sum().backward()
            grads.append(model.module.weight.grad.item())
    assert grads == [1.0] * len(grads), f"found {grads}"


def restores_the_flag(wrap, ranks):
    """An exception inside no_sync does not leave the replicas to themselves."""
    model = wrap(mlp(ranks.rank))
    with contextlib.suppress(ArithmeticError), model.no_sync():
        raise ArithmeticError
    loss_of(model, ranks).backward()
    assert_gradients_equal(model)


def sends_while_backward_goes_on(wrap, ranks):
    """In order, and in time: before the last layer to be reached has its gradient."""
    sent = []

    def all_reduce(tensor, **options):
        sent.append(len(module.spans))
        return dist.all_reduce(tensor, **options)

    module = make_sleeping(4, 8000, forward_s=1e-3, backward_s=2e-3)
    model = wrap(module, all_reduce=all_reduce, bucket_cap_mb=SMALL_CAP_MB)
    for _ in range(2):
        module.spans.clear()
        sent.clear()
        model(torch.ones(1)).sum().backward()
    assert sent == [5, 6, 7, 8], f"after {sent} spans, expected a backward before each message"


def sends_a_message_a_bucket(wrap, ranks):
    model = wrap(mlp(ranks.rank), bucket_cap_mb=SMALL_CAP_MB)
    for step in range(3):
        with count_traffic() as traffic:
            loss_of(model, ranks, step).backward()
    assert traffic.collectives == {"all_reduce": 2}, f"{traffic.collectives}"


# -- mutants -----------------------------------------------------------------------------------


class NoDivision(Ours):
    def _make_reducer(self):
        super()._make_reducer()
        self._reducer.divisor = lambda: 1.0


class NoReduction(Ours):
    def __init__(self, module, **options):
        super().__init__(module, **options, all_reduce=pretend)


def pretend(tensor, group=None, async_op=True):
    return dist.all_reduce(torch.zeros_like(tensor), group=group, async_op=async_op)


class NoInitialBroadcast(Ours):
    def __init__(self, module, **options):
        super().__init__(module, init_sync=False, **options)


class NoBufferBroadcast(Ours):
    def _syncs_buffers(self, after_forward):
        return False


class NoUnusedDetection(Ours):
    def _watch(self, output):
        return output


class InitialDivisor(Ours):
    """Divides by the world size, however many ranks are left."""

    def _tell_joined(self):
        super()._tell_joined()
        self._reducer.divisor = None


class NoOverlap(Ours):
    """The same messages, when all gradients are there."""

    def _make_reducer(self):
        super()._make_reducer()
        self._reducer._send_full_buckets = functools.partial(send_when_all_are_full, self._reducer)


def send_when_all_are_full(reducer):
    if not any(bucket.waiting for bucket in reducer.buckets):
        hot_path.Reducer._send_full_buckets(reducer)


class InModelOrder(Ours):
    """Buckets in the order of the model, which is the wrong way round for backward."""

    def __init__(self, module, **options):
        super().__init__(module, **options, plan=lambda given: [[p] for p in module.parameters()])


class OneMessageTooMany(Ours):
    def _after_forward(self, output):
        dist.all_reduce(torch.ones(1), group=self.process_group)
        return super()._after_forward(output)


class HookOnTheNextParameter(Ours):
    """Each hook takes its neighbour's gradient: of the right size only by chance, and too early."""

    def _make_reducer(self):
        super()._make_reducer()
        reducer, slots = self._reducer, self._reducer.slots
        neighbours = dict(zip(slots, [*slots[1:], slots[0]], strict=True))
        reducer._collect = lambda slot, grad: hot_path.Reducer._collect(
            reducer, neighbours[slot], neighbours[slot].parameter.grad
        )


class HookBeforeAccumulation(Ours):
    """A hook on the tensor, not on its accumulated gradient: backward adds to the mean after it."""

    def _make_reducer(self):
        super()._make_reducer()
        reducer = self._reducer
        reducer.remove_hooks()
        for slot in reducer.slots:
            slot.parameter.register_hook(functools.partial(collect_early, reducer, slot))


def collect_early(reducer, slot, grad):
    if reducer._syncs:
        reducer._collect(slot, grad)


class NoFinally(Ours):
    @contextlib.contextmanager
    def no_sync(self):
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        yield
        self.require_backward_grad_sync = before


CAUGHT_BY: dict[type, Callable] = {
    NoDivision: is_one_process,
    NoReduction: is_one_process,
    NoInitialBroadcast: is_one_process,
    NoBufferBroadcast: keeps_buffers_alike,
    NoUnusedDetection: finds_unused_parameters,
    InitialDivisor: divides_by_those_that_are_left,
    NoOverlap: sends_while_backward_goes_on,
    InModelOrder: sends_while_backward_goes_on,
    OneMessageTooMany: sends_a_message_a_bucket,
    HookOnTheNextParameter: is_one_process,
    HookBeforeAccumulation: is_one_process,
    NoFinally: restores_the_flag,
}


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Why a check refused a class on this rank: the error's text, empty where it passed."""

    wrap: str
    check: str
    error: str
    where: str


def verdicts() -> list[Verdict]:
    """Each check on the class, then each mutant under its check, in groups of their own."""
    cases = [(Ours, check) for check in dict.fromkeys(CAUGHT_BY.values())]
    with process_group(timeout_s=30) as ranks:
        return [verdict(wrap, check, ranks) for wrap, check in [*cases, *CAUGHT_BY.items()]]


def verdict(wrap: type, check: Callable, ranks) -> Verdict:
    """Ranks that are left waiting give up after seconds; all meet before the next case."""
    error = where = ""
    group = dist.new_group(timeout=timedelta(seconds=3))
    try:
        check(functools.partial(wrap, process_group=group), ranks)
    except Exception as caught:
        error, where = f"{type(caught).__name__}: {caught}", traceback.format_exc()
    dist.barrier()
    return Verdict(wrap.__name__, check.__name__, error, where)


@functools.cache
def found() -> list[list[Verdict]]:
    return [list(of_ranks) for of_ranks in zip(*run_function(verdicts), strict=True)]


def test_the_class_passes_and_each_mutant_is_refused():
    for of_ranks in found():
        errors = [verdict.error for verdict in of_ranks]
        name = f"{of_ranks[0].wrap} under {of_ranks[0].check}"
        if of_ranks[0].wrap == Ours.__name__:
            assert not any(errors), f"{name}: {of_ranks[0].where or of_ranks[1].where}"
        else:
            assert any(errors), f"{name} was not refused"


@pytest.mark.parametrize(
    ("mutant", "says"),
    [
        (NoDivision, "AssertionError: step 0"),
        (NoReduction, "AssertionError: step 0"),
        (NoInitialBroadcast, "AssertionError: step 0"),
        (NoBufferBroadcast, "AssertionError: offset differs between ranks"),
        (NoUnusedDetection, "AssertionError: rank 1 has other tensors than rank 0"),
        (InitialDivisor, "AssertionError: found [1.0, 0.5]"),
        (NoOverlap, "AssertionError: after [8, 8, 8, 8] spans"),
        (InModelOrder, "AssertionError: after [8, 8, 8, 8] spans"),
        (OneMessageTooMany, "AssertionError: Counter({'all_reduce': 3})"),
        (NoFinally, "AssertionError: 5 differs between ranks"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_why(mutant, says):
    """Refused for what is wrong with it, and not for how it was made."""
    (of_ranks,) = [ranks for ranks in found() if ranks[0].wrap == mutant.__name__]
    assert any(verdict.error.startswith(says) for verdict in of_ranks), of_ranks
