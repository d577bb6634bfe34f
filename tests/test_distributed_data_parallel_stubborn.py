"""Uses of DistributedDataParallel that are odd but not wrong, and wrong ones that are named."""

import dataclasses
import itertools
from functools import partial

import pytest
import torch
from torch import nn

from helpers.data_parallel import DistributedDataParallel
from helpers.launch import run_function
from helpers.process_group import process_group


@dataclasses.dataclass
class Output:
    value: torch.Tensor


class ToDataclass(nn.Linear):
    def forward(self, x):
        return Output(super().forward(x))


def net(*sizes: int) -> nn.Sequential:
    torch.manual_seed(0)
    sizes = sizes or (3, 4, 2)
    return nn.Sequential(*(nn.Linear(*pair) for pair in itertools.pairwise(sizes)))


def inputs(rank: int) -> torch.Tensor:
    return torch.full((2, 3), 1.0 + rank)


def expected(module: nn.Module, call=lambda module, x: module(x)) -> list[torch.Tensor]:
    """Gradients of the mean over two ranks of the summed output."""
    sum(call(module, inputs(rank)).sum() / 2 for rank in range(2)).backward()
    return [p.grad for p in module.parameters() if p.grad is not None]


def assert_gradients(module: nn.Module, wanted: list[torch.Tensor]) -> None:
    found = [p.grad for p in module.parameters() if p.grad is not None]
    torch.testing.assert_close(found, [grad.to(found[0].dtype) for grad in wanted])


def frozen_for_a_while(rank):
    model = DistributedDataParallel(net())
    model.module.requires_grad_(False)
    model(inputs(rank).requires_grad_()).sum().backward()  # a generator's step through it
    model.module.requires_grad_(True)
    model(inputs(rank)).sum().backward()
    assert_gradients(model.module, expected(net()))


def static_with_an_output_that_is_a_dataclass(rank):
    torch.manual_seed(0)
    module, alone = ToDataclass(3, 2), ToDataclass(3, 2)
    model = DistributedDataParallel(module, static_graph=True)
    alone.load_state_dict(module.state_dict())
    for _ in range(3):
        model.zero_grad()
        model(inputs(rank)).value.sum().backward()
    assert_gradients(module, expected(alone, lambda module, x: module(x).value))


def static_after_a_first_backward_that_raised(rank):
    def refuse(_):
        raise FloatingPointError("not this one")

    model = DistributedDataParallel(net(), static_graph=True)
    output = model(inputs(rank))
    output.register_hook(refuse)
    with pytest.raises(FloatingPointError):
        output.sum().backward()
    for _ in range(2):
        model.zero_grad()
        model(inputs(rank)).sum().backward()
    assert_gradients(model.module, expected(net()))


def wrapped_again_while_the_old_wrapper_lives(rank, as_views):
    module = net()
    wrap = partial(DistributedDataParallel, gradient_as_bucket_view=as_views)
    old = wrap(module)
    old(inputs(rank)).sum().backward()
    new = wrap(module)
    for model in (new, old, new):
        model.zero_grad()
        model(inputs(rank)).sum().backward()
        assert_gradients(module, expected(net()))


def cast_after_wrapping(rank):
    model = DistributedDataParallel(net(), gradient_as_bucket_view=True)
    model(inputs(rank)).sum().backward()
    model.zero_grad()
    model.double()
    model(inputs(rank).double()).sum().backward()
    assert_gradients(model.module, expected(net()))


def plans_that_differ_between_ranks(rank):
    def plan(parameters):
        step = 1 if rank else 3
        return [parameters[i : i + step] for i in range(0, len(parameters), step)]

    model = DistributedDataParallel(net(3, 5, 5, 2), plan=plan)
    for _ in range(3):
        model.zero_grad()
        model(inputs(rank)).sum().backward()
        assert_gradients(model.module, expected(net(3, 5, 5, 2)))
    assert len(model.buckets) == 2  # the first rank's


def caps_of_nothing(rank):
    for caps in ({"bucket_cap_mb": 0}, {"bucket_cap_mb_list": [0]}, {"bucket_cap_mb": 1e-7}):
        model = DistributedDataParallel(net(), **caps)
        assert len(model.buckets) == 4
        model(inputs(rank)).sum().backward()
        assert_gradients(model.module, expected(net()))


def what_was_observed_does_not_pile_up(rank):
    model = DistributedDataParallel(net(), find_unused_parameters=True)
    for _ in range(5):
        model(inputs(rank)).sum().backward()
    assert not model._reducer._layout.observed


def frozen_on_one_rank_only(rank):
    module = net()
    module[0].bias.requires_grad_(rank == 0)
    with pytest.raises(ValueError, match=r"0\.bias, frozen, .* expected one model on all"):
        DistributedDataParallel(module)


def sparse_gradients(rank):
    with pytest.raises(NotImplementedError, match=r"0\.weight, expected dense"):
        DistributedDataParallel(nn.Sequential(nn.Embedding(4, 2, sparse=True)))


def a_hook_with_a_state_for_each_bucket(rank):
    def hook(state, bucket):
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    model = DistributedDataParallel(net())
    model.register_comm_hook(None, hook)
    model(inputs(rank)).sum().backward()
    model.module[0].requires_grad_(False)
    with pytest.warns(UserWarning, match="registered anew"):
        model(inputs(rank))


CASES = (
    frozen_for_a_while,
    static_with_an_output_that_is_a_dataclass,
    static_after_a_first_backward_that_raised,
    partial(wrapped_again_while_the_old_wrapper_lives, as_views=False),
    partial(wrapped_again_while_the_old_wrapper_lives, as_views=True),
    cast_after_wrapping,
    plans_that_differ_between_ranks,
    caps_of_nothing,
    what_was_observed_does_not_pile_up,
    frozen_on_one_rank_only,
    sparse_gradients,
    a_hook_with_a_state_for_each_bucket,
)


def run_cases() -> int:
    with process_group(timeout_s=20) as ranks:
        for case in CASES:
            try:
                case(ranks.rank)
            except BaseException as error:
                error.add_note(f"in {case}")
                raise
    return len(CASES)


def test_odd_uses_are_right_and_wrong_ones_named():
    assert run_function(run_cases, nproc_per_node=2, timeout_s=60) == [len(CASES)] * 2
