"""Ranks start and end light: what the fork server loads for them, and what it spares them."""

import atexit
import gc
import os
import signal
import sys
import time
import weakref
from pathlib import Path

from helpers.launch import run_function


def loaded():
    is_default = signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    return (
        "torch._dynamo" in sys.modules,
        is_default and "TORCHINDUCTOR_CACHE_DIR" not in os.environ,
    )


def test_a_later_rank_finds_it_loaded_and_keeps_its_own_alarm(monkeypatch):
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)  # compiling sets it for good
    give_up = time.monotonic() + 40
    found = run_function(loaded)
    while not all(is_loaded for is_loaded, _ in found) and time.monotonic() < give_up:
        time.sleep(0.5)  # longer than the server waits before it looks
        found = run_function(loaded)
    assert found == [(True, True)] * 2


def inherited():
    """How many of the server's finalizers would run at this rank's end, and how many there are."""
    finalizers = weakref.finalize._registry
    return sum(each.atexit for each in finalizers), len(finalizers), gc.get_freeze_count()


def test_a_rank_does_not_do_what_the_server_would_do_at_its_end():
    for num_run, num_all, num_frozen in run_function(inherited):
        assert num_run == 0
        assert num_all > 100  # the control: there is something to spare, torch's operators
        assert num_frozen > 100_000


def leave_notes(folder: Path) -> None:
    weakref.finalize(Path, (folder / "finalize").touch)
    atexit.register((folder / "atexit").touch)


def test_a_rank_does_at_its_end_what_its_own_code_has_asked_for(tmp_path):
    run_function(leave_notes, tmp_path, nproc_per_node=1)
    assert {path.name for path in tmp_path.iterdir()} == {"finalize", "atexit"}
