"""Errors are relative to the reference and named; replicas that differ are told apart."""

import math

import pytest
import torch
from torch import nn

from helpers import problems
from helpers.compare import assert_replicas_equal, gradients, relative_error
from helpers.launch import run_function
from helpers.process_group import process_group


def test_relative_error_of_tensors_lists_and_dicts():
    b = torch.tensor([3.0, 4.0])
    assert relative_error(b, b) == 0
    assert relative_error(b + torch.tensor([0.0, 0.5]), b) == pytest.approx(0.1)
    assert relative_error([b, b + 1], [b, b]) == pytest.approx(math.sqrt(2 / 50))
    assert relative_error({"x": [b * 2]}, {"x": [b]}).worst == "x[0]"
    assert relative_error(2 * b, b).worst is None
    assert relative_error(torch.tensor([1]), torch.tensor([2])) == 0.5


def test_complex_numbers_and_large_integers_are_compared_whole():
    one = torch.ones(1, dtype=torch.complex128)
    assert relative_error(one + 5j, one) == 5
    assert relative_error((one * 1j).conj(), -one * 1j) == 0
    assert relative_error(torch.tensor([2**60]), torch.tensor([2**60 + 1])) == 2.0**-60


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ({"w": None}, {"w": None}, "nothing to compare: found 1 times None"),
        ([], [], "nothing to compare: found 0 times None"),
        (torch.eye(2).to_sparse(), torch.eye(2).to_sparse(), "found a torch.sparse_coo tensor"),
        ({"w": torch.ones(2, device="meta")}, {"w": torch.ones(2)}, "w: found a meta tensor"),
    ],
)
def test_what_has_no_numbers_to_compare_is_refused(a, b, message):
    with pytest.raises(ValueError, match=message):
        relative_error(a, b)


def test_relative_error_names_the_worst():
    b = {"small": torch.ones(1), "large": torch.ones(100)}
    error = relative_error({"small": torch.ones(1) * 1.5, "large": b["large"] + 0.01}, b)
    assert error.worst == "small"
    assert str(error) == "5.1e-02, worst in small"


def test_zeros_nan_and_infinity_are_below_no_bound():
    zero, one = torch.zeros(2), torch.ones(2)
    assert relative_error(zero, zero) == 0
    assert relative_error(one, zero) == math.inf
    error = relative_error([one, one * math.nan], [one, one])
    assert math.isnan(error)
    assert error.worst == "[1]"
    assert not error < 1e300
    assert relative_error([one * math.inf], [one]) == math.inf


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ({"w": torch.zeros(2)}, {"w": torch.zeros(3)}, r"w: found \(\(2,\), torch.float32\)"),
        ([torch.zeros(2)], [torch.zeros(2).double()], r"\[0\]: found .*float64"),
        ({"w": None}, {"w": torch.zeros(3)}, "w: found None"),
        ({"w": torch.zeros(1)}, {"v": torch.zeros(1)}, "only one of the two has v, w"),
        ([torch.zeros(1)], [], r"only one of the two has \[0\]"),
    ],
)
def test_what_is_not_alike_is_named(a, b, message):
    with pytest.raises(ValueError, match=message):
        relative_error(a, b)


def test_gradients_are_copies_by_name():
    model = problems.make_mlp((64, 10))
    assert gradients(model) == {"0.weight": None, "0.bias": None}
    model(torch.ones(1, 64)).sum().backward()
    found = gradients(model)
    model.zero_grad(set_to_none=False)
    assert found["0.bias"].abs().max() == 1
    assert relative_error(found, found) == 0


def on_ranks(change: str):
    """Change one thing on the last rank and return what every rank is told."""
    with process_group(timeout_s=10) as ranks:
        model = problems.make_conv(norm="batch")
        model.note = nn.Parameter(torch.tensor([math.nan, 1.0]))
        kind = {"imaginary": torch.ones(1) * (1 + 0j), "sparse": torch.eye(2).to_sparse()}
        model.register_buffer("extra", kind.get(change, torch.tensor([2**60])))
        with torch.no_grad():
            if ranks.rank == ranks.world_size - 1:
                if change == "weight":
                    model[1].weight[0, 0, 0, 0] += 0.5
                    model[1].bias += 0.25
                elif change == "nan":
                    model[1].weight[0] = math.nan
                elif change == "imaginary":
                    model.extra += 1j
                elif change == "large":
                    model.extra += 1
                elif change == "buffer":
                    model[2].num_batches_tracked += 3
                elif change == "shape":
                    model[8] = nn.Linear(512, 11)
        told = []
        for buffers in (True, False):
            try:
                assert_replicas_equal(model, buffers=buffers)
                told.append(None)
            except (AssertionError, ValueError) as error:
                told.append(str(error))
        return told


@pytest.mark.parametrize(
    ("change", "world_size", "message"),
    [
        ("nothing", 1, None),
        ("weight", 1, None),
        ("nothing", 4, None),
        ("weight", 4, "1.weight differs between ranks: rank 3 is up to 5.0e-01 off rank 0 (2 of"),
        ("nan", 2, "1.weight differs between ranks: rank 1 is up to inf off rank 0 (1 of"),
        ("shape", 2, "rank 1 has other tensors than rank 0: 8.weight (11, 512) torch.float32"),
        ("imaginary", 2, "extra differs between ranks: rank 1 is up to 1.0e+00 off rank 0 (1 of"),
        ("large", 2, "extra differs between ranks: rank 1 is up to 1.0e+00 off rank 0 (1 of"),
        ("sparse", 2, "extra: found a torch.sparse_coo tensor, expected a dense one"),
        ("buffer", 2, "2.num_batches_tracked differs between ranks: rank 1 is up to 3.0e+00"),
    ],
)
def test_replicas(change, world_size, message):
    told = run_function(on_ranks, change, nproc_per_node=world_size)
    for with_buffers, without in told:
        if message is None:
            assert with_buffers is None
        else:
            assert with_buffers.startswith(message)
        in_buffers = change in ("buffer", "imaginary", "large", "sparse")
        assert (without is None) == (message is None or in_buffers)
