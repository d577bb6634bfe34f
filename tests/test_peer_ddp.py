"""PyTorch's own tests of DistributedDataParallel, with ours in its place, at worlds 2 and 3.

What torch's class passes, and which tests do not count and why, is stored in
book/measured/peer_ddp.json; `python tests/run_peer_ddp.py --record` makes that file anew.
"""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from peer_ddp import lists, record

STORED = json.loads(record.RECORD.read_text())


def test_what_is_stored_is_what_runs():
    """Both worlds at a time: ranks wait for each other more than they compute."""
    with ThreadPoolExecutor() as pool:
        for world_size, outcomes in zip(
            record.WORLD_SIZES, pool.map(run, record.WORLD_SIZES), strict=True
        ):
            check(world_size, outcomes)


def run(world_size: int) -> record.Outcomes:
    return record.outcomes_of("--world-size", str(world_size), limit_s=600)


def check(world_size: int, outcomes: record.Outcomes) -> None:
    failed = [f"{x['name']}: {x['reason']}" for x in outcomes if x["status"] == "failed"]
    assert failed == [], f"world {world_size}"
    assert [x["name"] for x in outcomes] == lists.accepted(world_size)
    skipped = [x["name"] for x in outcomes if x["status"] == "skipped"]
    assert skipped == names("ours_skipped", world_size)
    stored = STORED["ours"][str(world_size)]
    slow = len(lists.RECORDED_ONLY[world_size])
    assert record.counts(outcomes) == stored | {"passed": stored["passed"] - slow}


def names(key: str, world_size: int) -> list[str]:
    return [row["name"] for row in STORED[key] if world_size in row["worlds"]]


@pytest.mark.parametrize("world_size", record.WORLD_SIZES)
def test_ours_passes_what_stock_passes_but_for_the_exceptions(world_size):
    """The sums of the record: nothing that torch's class passes is left out unnamed."""
    stock, ours = (STORED[whose][str(world_size)] for whose in ("stock", "ours"))
    assert len(lists.EXCEPTIONS) == len(STORED["exceptions"])
    assert ours["passed"] + len(lists.EXCEPTIONS) == stock["passed"]
    assert ours["failed"] == 0
    assert set(names("ours_skipped", world_size)) <= set(names("stock_skipped", world_size))
    assert len(names("stock_failed", world_size)) == stock["failed"]
    assert len(names("stock_skipped", world_size)) == stock["skipped"]


@pytest.mark.parametrize("world_size", record.WORLD_SIZES)
def test_the_lists_do_not_overlap(world_size):
    accepted, slow = lists.accepted(world_size), lists.RECORDED_ONLY[world_size]
    assert accepted == sorted(set(accepted))
    failed = [row["name"] for row in STORED["stock_failed"]]
    assert not {*accepted} & {*lists.EXCEPTIONS, *slow, *failed}
    assert [row["name"] for row in STORED["recorded_only"][str(world_size)]] == list(slow)


def test_what_is_left_out_is_named_with_its_reason():
    assert [row["name"] for row in STORED["exceptions"]] == list(lists.EXCEPTIONS)
    for key in ("exceptions", "stock_failed", "stock_skipped", "ours_skipped"):
        assert all(row["reason"] for row in STORED[key])


def test_the_record_is_of_this_torch():
    installed = torch.__version__.partition("+")[0]
    assert STORED["torch"] == installed, "make the record anew: run_peer_ddp.py --record"
