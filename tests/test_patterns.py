"""Patterns of messages take what the rule of ports predicts; a case without messages is named."""

import pytest
import torch
import torch.distributed as dist

from helpers.link import Link
from helpers.patterns import messages, seconds_on

LINK = Link(40e-3, 0.1)
ONE = {"size_bytes": 1_000_000}


def gather(rank):
    dist.gather(torch.ones(3), [torch.empty(3) for _ in range(3)] if rank == 0 else None)


def test_patterns_take_the_time_of_their_busiest_port():
    cases = {
        "one": messages((0, 1), **ONE),
        "both ways": messages((0, 1), (1, 0), **ONE),
        "two to one": messages((1, 0), (2, 0), **ONE),
        "twice": messages((0, 2), **ONE, times=2),
    }
    measured = seconds_on(LINK, 3, cases, repeat=2)
    assert list(measured) == list(cases)
    for name, count in zip(cases, (1, 1, 2, 2), strict=True):
        assert len(measured[name]) == 2
        assert 0.999 <= min(measured[name]) / (count * LINK.message_s(1_000_000)) < 1.15, name


def test_a_collective_may_be_a_case_and_one_that_sends_nothing_is_named():
    (taken,) = seconds_on(LINK, 3, {"gather": gather}, repeat=1)["gather"]
    assert 0.999 <= taken / LINK.collective_s("gather", 36, 3) < 1.15
    with pytest.raises(ValueError, match="case 'nothing': no rank sends"):
        seconds_on(LINK, 2, {"nothing": messages(size_bytes=1)}, repeat=1)
