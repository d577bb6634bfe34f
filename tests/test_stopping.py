"""A command that is told to end ends as with Ctrl-C; what it was told to ignore, it ignores."""

import os
import signal

import pytest

from helpers.stopping import end_as_interrupted


@pytest.fixture(autouse=True)
def handlers_come_back():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_stop_is_an_interrupt(number):
    signal.signal(number, signal.SIG_DFL)
    end_as_interrupted()
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)


def test_what_is_ignored_or_handled_stays_so(monkeypatch):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, print)
    end_as_interrupted()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGTERM) is print
    monkeypatch.delattr(signal, "SIGHUP")
    end_as_interrupted()
