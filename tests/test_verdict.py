"""verdict: the gate's words, without what differs between machines."""

import functools
import re

import pytest
import torch
from torch import nn

from helpers.compare.verdict import _in_red, verdict


def make_model():
    return nn.Linear(3, 1)


def loss_sum(model, batch):
    return model(batch).square().sum()


def step(model, optimizer, micro_batches, divisor=12):
    optimizer.zero_grad()
    for part in micro_batches:
        (loss_sum(model, part) / divisor).backward()
    optimizer.step()


TRAINING = (
    make_model,
    functools.partial(torch.optim.SGD, lr=0.01),
    loss_sum,
    [torch.randn(12, 3, generator=torch.Generator().manual_seed(0))],
    len,
)
SPLIT = {"ranks": (1,), "micro_batches": (2,), "steps": 1}


def test_green_is_one_word_and_the_error_comes_back(capsys):
    assert 0 <= verdict(*TRAINING, train_step=step, **SPLIT) < 1e-12
    assert capsys.readouterr().out == "green\n"


def test_red_is_where_and_why_without_a_size(capsys):
    twice = functools.partial(step, divisor=6)
    assert verdict(*TRAINING, train_step=twice, **SPLIT) is None
    said = capsys.readouterr().out
    variant, seen, cause = re.split(r"\n  (?=\w)", said.strip())
    words = "red: 1 rank x 2 micro-batches differ from one process on the whole batch"
    assert variant.split() == words.split()
    assert seen == "first seen: step 0, rank 0: the gradient\n    weight"
    assert cause.startswith("likely cause: all gradients: 2 times too\n    large")
    assert max(map(len, said.splitlines())) <= 44


def test_a_missing_tensor_is_still_said_to_be():
    told = "A differ: after loading, rank 1: the gradient 0.bias is None here only, allowed 1e-12"
    said = _in_red(f"{told} (2 of 4 gradients differ)\nlikely cause: no known cause fits")
    assert " ".join(said.split()) == (
        "red: A differ first seen: after loading, rank 1: the gradient 0.bias is None here only "
        "likely cause: no known cause fits"
    )


def test_what_cannot_be_judged_is_an_error_and_no_verdict(capsys):
    with pytest.raises(ValueError, match=r"found torch\.bfloat16"):
        verdict(*TRAINING, train_step=step, dtype=torch.bfloat16, **SPLIT)
    assert capsys.readouterr().out == ""


def test_an_infinity_is_told_without_the_number_that_it_stands_for():
    told = "A differ: step 0, rank 0: the gradient w has inf where one process has 0.0672, allowed"
    said = _in_red(f"{told} 1e-12\nlikely cause: no known cause fits")
    assert " ".join(said.split()).endswith("gradient w has inf likely cause: no known cause fits")
