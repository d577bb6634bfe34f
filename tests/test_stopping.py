"""A command that is told to end ends as with Ctrl-C, and one that nobody reads without a word."""

import os
import signal
import subprocess
import sys

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


READ_BY_NOBODY = """
from helpers.stopping import write_no_more
input()
try:
    print("lost", flush=True)
except BrokenPipeError:
    write_no_more()
"""


def test_what_nobody_reads_is_no_error_at_the_end():
    code = [sys.executable, "-c", READ_BY_NOBODY]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}  # else nothing is kept to write again
    with subprocess.Popen(code, env=environment, **pipes) as process:
        process.stdout.close()
        process.stdin.write(b"\n")
        process.stdin.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0
