"""The fork server loads, when idle, what each rank with an optimizer would import for itself."""

import signal
import sys
import time

from helpers.launch import run_function


def loaded():
    return "torch._dynamo" in sys.modules, signal.getsignal(signal.SIGALRM) is signal.SIG_DFL


def test_a_later_rank_finds_it_loaded_and_keeps_its_own_alarm():
    give_up = time.monotonic() + 40
    found = run_function(loaded)
    while not all(is_loaded for is_loaded, _ in found) and time.monotonic() < give_up:
        time.sleep(0.5)  # longer than the server waits before it looks
        found = run_function(loaded)
    assert found == [(True, True)] * 2
