"""helpers.timing: warm-up thrown away, async work waited for, spread reported."""

import threading
import time

import pytest
import torch

from helpers import timing
from helpers.timing import Timing, measure


class SleepingWork:
    """As an async collective: the call returns at once, the result is there later."""

    def __init__(self, seconds: float):
        self.thread = threading.Thread(target=time.sleep, args=(seconds,))
        self.thread.start()

    def wait(self) -> None:
        self.thread.join()


@pytest.mark.parametrize(
    "wrap", [lambda work: work, lambda work: [work, work], lambda work: (1, work)]
)
def test_async_work_is_waited_for(wrap):
    def function():
        return wrap(SleepingWork(0.05))

    start_s = time.perf_counter()
    result = function()
    naive_s = time.perf_counter() - start_s
    [
        part.wait()
        for part in (result if isinstance(result, list | tuple) else [result])
        if part != 1
    ]
    assert naive_s < 0.03 < 0.05 <= measure(function, warmup=0, repeat=2).p10_s


def test_the_first_call_is_not_counted():
    calls = []

    def function():
        calls.append(None)
        time.sleep(0.2 if len(calls) == 1 else 0.001)

    measured = measure(function, warmup=1, repeat=5)
    assert (len(calls), measured.count) == (6, 5)
    assert measured.p90_s < 0.1


def test_median_and_spread_of_known_times(monkeypatch):
    readings = iter([0, 100, 200, 207, 300, 301, 400, 403, 500, 505, 600, 609])
    monkeypatch.setattr(timing.time, "perf_counter", lambda: float(next(readings)))
    measured = measure(lambda: None, warmup=1, repeat=5)
    assert measured == Timing(
        median_s=5.0, p10_s=pytest.approx(1.8), p90_s=pytest.approx(8.2), count=5
    )
    assert str(Timing(0.012, 0.011, 0.0134, 7)) == "12 ms (p10 11, p90 13.4, n = 7)"


def test_one_repeat_has_no_spread(monkeypatch):
    readings = iter([1.0, 3.0])
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(readings))
    assert measure(lambda: None, warmup=0, repeat=1) == Timing(2.0, 2.0, 2.0, 1)


def test_before_runs_untimed_and_each_time():
    order = []
    measured = measure(
        lambda: order.append("call"),
        warmup=1,
        repeat=2,
        before=lambda: (order.append("before"), time.sleep(0.02)),
    )
    assert order == ["before", "call"] * 3
    assert measured.p90_s < 0.02


@pytest.mark.parametrize(
    ("device", "uses_cuda"), [("cuda", False), ("cuda:1", False), (None, True)]
)
def test_cuda_is_synchronised_before_start_and_stop(monkeypatch, device, uses_cuda):
    order = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: uses_cuda)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: order.append(device))
    measure(lambda: order.append("call"), warmup=0, repeat=2, device=device)
    assert order == [device, "call", device] * 2


@pytest.mark.parametrize("device", ["cpu", None])
def test_a_process_without_cuda_stays_so(monkeypatch, device):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: pytest.fail("started CUDA"))
    measure(lambda: torch.ones(2), warmup=0, repeat=1, device=device)


@pytest.mark.parametrize("counts", [{"repeat": 0}, {"warmup": -1}])
def test_bad_counts_are_refused(counts):
    with pytest.raises(ValueError, match="expected at least 0 and 1"):
        measure(lambda: None, **counts)


def test_an_exception_comes_through():
    with pytest.raises(ZeroDivisionError):
        measure(lambda: 1 / 0)
