"""The launcher's fault table: each way a rank can go wrong, what is said, and how soon."""

import functools
import linecache
import re
import textwrap
import time

import pytest

from helpers.launch import RankFailed, run, run_function
from helpers.launch.launcher import run_and_echo
from helpers.launch.watch import Watch
from helpers.process_group import process_group

PREAMBLE = """
import os, signal, sys, time
import torch
import torch.distributed as dist
from helpers.launch import report
from helpers.process_group import process_group
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a script into the working folder and return its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Watch, "GRACE_S", Watch.GRACE_S / 2)  # tests wait less for the stubborn

    def write(body, name="script.py"):
        (tmp_path / name).write_text(PREAMBLE + textwrap.dedent(body))
        return name

    return write


def nothing():
    pass


@functools.cache
def launch_s() -> float:
    """Seconds that a launch takes here and now, once the fork server is warm."""
    run_function(nothing)
    start = time.perf_counter()
    run_function(nothing)
    return time.perf_counter() - start


def failing(script, within_s, **options):
    """The RankFailed of a launch, which must come within `within_s` seconds.

    A machine that is busy with other things gets the time of a few launches more.
    """
    allowed_s = within_s + 5 * launch_s()
    start = time.perf_counter()
    with pytest.raises(RankFailed) as caught:
        run(script, **options)
    assert time.perf_counter() - start < allowed_s
    return caught.value


def test_a_rank_that_raises_is_named_first_and_takes_the_others_down(write):
    script = write("""
        def main(rank):
            if rank == 1:
                raise ValueError("learning rate is -1.0; expected more than 0")
            dist.all_reduce(torch.ones(1))

        with process_group() as ranks:
            print("before", ranks.rank)
            main(ranks.rank)
        """)
    failed = failing(script, within_s=10)
    first, *frames = str(failed).splitlines()
    assert re.fullmatch(
        r"rank 1: ValueError: learning rate is -1.0; expected more than 0 \(script.py:\d+\)", first
    )
    assert [re.sub(r"\d+", "N", frame).strip() for frame in frames] == [
        "script.py:N, in <module>: main(ranks.rank)",
        'script.py:N, in main: raise ValueError("learning rate is -N.N; expected more than N")',
    ]
    assert (failed.rank, failed.exception_type) == (1, "ValueError")
    assert failed.message.startswith("learning rate")
    assert failed.location.startswith("script.py:")
    assert failed.output == "[rank 0] before 0\n[rank 1] before 1\n"


def test_a_rank_that_waits_instead_of_joining_ends_at_the_timeout_with_every_stack(write):
    script = write("""
        def join():
            dist.all_reduce(torch.ones(1))

        with process_group(timeout_s=60) as ranks:
            if ranks.rank == 0:
                join()
            elif ranks.rank == 1:
                time.sleep(60)
        """)
    failed = failing(script, within_s=10, nproc_per_node=3, timeout_s=4)
    assert failed.exception_type == "TimeoutError"
    assert failed.message == "not finished after 4 s"
    text = str(failed)
    assert re.search(
        r"rank 0 stood at script.py:\d+, in join: .*; "
        r"script.py:\d+, in <module>: join\(\) \(in \w+\)",
        text,
    )
    assert re.search(r"rank 1 stood at script.py:\d+, in <module>: time.sleep\(60\)", text)
    assert "rank 2 had ended" in text


def test_a_collective_that_times_out_says_where_the_missing_rank_stands(write):
    script = write("""
        with process_group(timeout_s=4) as ranks:
            if ranks.rank == 0:
                dist.all_reduce(torch.ones(1))
            time.sleep(60)
        """)
    failed = failing(script, within_s=14)
    assert failed.rank == 0
    assert re.search(r"rank 1 stood at script.py:\d+, in <module>: time.sleep\(60\)", str(failed))


def test_ranks_in_different_collectives_are_both_named_with_their_lines(write):
    script = write("""
        with process_group(timeout_s=4) as ranks:
            if ranks.rank == 0:
                dist.all_reduce(torch.ones(1))
            dist.broadcast(torch.ones(1), src=0)
        """)
    text = str(failing(script, within_s=14))
    assert re.match(r"rank \d: \w+: (?!\[)", text)  # no path of the machine that built gloo
    assert "all_reduce(torch.ones(1))" in text
    assert "broadcast(torch.ones(1), src=0)" in text


def test_a_rank_that_leaves_early_is_told_apart_from_one_that_fails(write):
    script = write("""
        with process_group(timeout_s=10) as ranks:
            if ranks.rank == 0:
                dist.all_reduce(torch.ones(1))
        """)
    failed = failing(script, within_s=15)  # once in many runs gloo does not see that a peer left
    assert failed.rank == 0
    assert "rank 1 had ended" in str(failed)


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGTERM"])
def test_a_rank_that_a_signal_ends(write, name):
    script = write(f"""
        with process_group() as ranks:
            if ranks.rank == 1:
                os.kill(os.getpid(), signal.{name})
            dist.all_reduce(torch.ones(1))
        """)
    failed = failing(script, within_s=10)
    assert (failed.rank, failed.exception_type) == (1, name)


def test_a_rank_whose_memory_runs_out(write):
    script = write("""
        import resource

        with process_group() as ranks:
            if ranks.rank == 1:
                resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
                torch.ones(1 << 30)
            dist.all_reduce(torch.ones(1))
        """)
    failed = failing(script, within_s=10)
    assert failed.rank == 1
    assert "allocate memory" in failed.message


@pytest.mark.parametrize(("code", "message"), [("3", "3"), ("'no data'", "no data")])
def test_sys_exit(write, code, message):
    failed = failing(write(f"sys.exit({code} if os.environ['RANK'] == '1' else 0)"), within_s=10)
    assert (failed.rank, failed.exception_type, failed.message) == (1, "SystemExit", message)


def test_sys_exit_without_a_code_is_no_failure(write):
    assert run(write("report(rank=0); sys.exit()")).result == {"rank": 0}


@pytest.mark.parametrize("code", [0, 7])
def test_a_rank_that_vanishes_without_a_word(write, code):
    script = write(f"if os.environ['RANK'] == '1': os._exit({code})\ntime.sleep(60)")
    failed = failing(script, within_s=10)
    assert (failed.rank, failed.exception_type) == (1, "SystemExit")
    assert f"exit code {code} and without a word" in failed.message


def test_ranks_that_all_vanish_without_a_word(write):
    failed = failing(write("os._exit(0)"), within_s=10)
    assert "exit code 0 and without a word" in failed.message


def test_a_rank_that_obeys_when_time_is_up_has_not_succeeded(write):
    script = write("""
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        while True:
            time.sleep(0.1)
        """)
    failed = failing(script, within_s=10, timeout_s=2)
    assert failed.exception_type == "TimeoutError"


def test_a_script_that_handles_sigterm_still_shows_its_stack(write):
    script = write("signal.signal(signal.SIGTERM, lambda *_: None)\ntime.sleep(60)")
    failed = failing(script, within_s=10, timeout_s=2)
    assert re.search(r"rank 0 stood at script.py:\d+, in <module>: time.sleep\(60\)", str(failed))


def test_a_thread_that_goes_on_is_named_when_time_is_up(write):
    script = write("import threading\nthreading.Thread(target=time.sleep, args=(60,)).start()")
    failed = failing(script, within_s=10, nproc_per_node=1, timeout_s=2)
    assert "rank 0 had ended, but for a thread" in str(failed)


def test_an_own_error_that_sounds_like_a_lost_peer_is_the_cause(write):
    script = write("""
        with process_group() as ranks:
            if ranks.rank == 1:
                raise ConnectionError("Connection reset by the database")
            dist.all_reduce(torch.ones(1))
        """)
    failed = failing(script, within_s=10)
    assert (failed.rank, failed.exception_type) == (1, "ConnectionError")


def test_an_exception_without_a_usable_message_is_still_told(write):
    script = write("""
        class Silent(Exception):
            def __str__(self):
                raise ValueError

        raise Silent
        """)
    failed = failing(script, within_s=10, nproc_per_node=1)
    assert (failed.exception_type, failed.message) == ("Silent", "(its message raises ValueError)")


def test_causes_notes_and_members_are_told(write):
    script = write("""
        try:
            {}["key"]
        except KeyError as cause:
            error = ExceptionGroup("several", [ValueError("one"), TypeError("two")])
            error.add_note("in the first batch")
            raise error from cause
        """)
    lines = str(failing(script, within_s=10, nproc_per_node=1)).splitlines()
    assert lines[1:5] == [
        "in the first batch",
        "with ValueError: one",
        "with TypeError: two",
        "from KeyError: 'key'",
    ]


def test_a_recursion_and_a_long_message_stay_readable(write):
    script = write("def f(): f()\nf()")
    assert len(str(failing(script, within_s=10, nproc_per_node=1)).splitlines()) < 30
    script = write("raise ValueError('\\udc80' + 'x' * 3_000_000)")
    text = str(failing(script, within_s=10, nproc_per_node=1))
    assert len(text) < 10_000
    text.encode()  # can be printed


def test_a_forked_child_that_raises_does_not_speak_for_its_rank(write):
    script = write("""
        if os.fork() == 0:
            raise ValueError("of the child")
        time.sleep(1)
        report(ok=True)
        """)
    assert run(script, nproc_per_node=1).result == {"ok": True}


def test_closed_streams_are_no_failure(write):
    run(write("sys.stdout.close(); sys.stderr.close()"), nproc_per_node=1)


def test_a_listener_that_raises_ends_the_launch_within_its_time(write):
    def refuse(text):
        raise OSError("pipe closed")

    start = time.perf_counter()
    with pytest.raises(OSError, match="pipe closed"):
        run_and_echo(write("print(1)\ntime.sleep(60)"), (), 1, 2.0, None, refuse)
    assert time.perf_counter() - start < 10


def test_a_function_from_a_cell_is_shown_with_its_line():
    source = "def divide(n):\n    def inner():\n        return 1 / n\n    return inner()\n"
    cell = "/tmp/ipykernel_1/2.py"
    linecache.cache[cell] = (len(source), None, source.splitlines(True), cell)
    names = {"__name__": "__main__"}
    exec(compile(source, cell, "exec"), names)
    with pytest.raises(RankFailed) as caught:
        run_function(names["divide"], 0, nproc_per_node=1)
    assert str(caught.value).splitlines() == [
        "rank 0: ZeroDivisionError: division by zero (cell:3)",
        "  cell:4, in divide: return inner()",
        "  cell:3, in inner: return 1 / n",
    ]


def test_a_syntax_error_has_its_line(write):
    failed = failing(write("x = (1,\ny = = 2\n"), within_s=10)
    assert failed.exception_type == "SyntaxError"
    assert re.fullmatch(r"script.py:\d+", failed.location)


def test_where_all_ranks_fail_alike_the_lowest_is_named_on_every_run(write):
    script = write("raise ValueError('everywhere')")
    assert {failing(script, within_s=10, nproc_per_node=4).rank for _ in range(5)} == {0}


def test_a_missing_script_is_refused_before_anything_starts(write):
    with pytest.raises(FileNotFoundError, match=r"no script 'nothing\.py'"):
        run("nothing.py")


def test_fifty_megabytes_of_output_are_cut_and_the_report_is_kept(write):
    script = write("""
        for _ in range(50):
            print(("x" * 99 + "\\n") * 10_000, end="")
        report(done=True)
        """)
    completed = run(script, nproc_per_node=1)
    assert completed.result == {"done": True}
    assert len(completed.output) < 1_300_000
    assert completed.output.startswith("[rank 0] ... 49,000,")
    assert "bytes cut" in completed.output.splitlines()[0]


def test_output_that_is_not_utf8(write):
    script = write("sys.stdout.buffer.write(b'caf\\xe9\\n'); sys.stdout.flush()")
    assert run(script, nproc_per_node=1).output == "[rank 0] caf\ufffd\n"


def test_stdin_is_empty(write):
    failed = failing(write("input()"), within_s=10, nproc_per_node=1)
    assert failed.exception_type == "EOFError"


def test_a_second_group_in_one_job(write):
    script = write("""
        sums = []
        for _ in range(5):
            with process_group() as ranks:
                total = torch.ones(1)
                dist.all_reduce(total)
                sums.append(total.item())
        report(sums=sums)
        """)
    assert run(script, nproc_per_node=4).result == {"sums": [4.0] * 5}


def test_a_group_inside_a_group_is_refused(write):
    failed = failing(write("with process_group():\n    with process_group(): pass"), within_s=10)
    assert failed.exception_type == "RuntimeError"
    assert "open already" in failed.message


def test_a_failure_inside_a_group_leaves_it_closed():
    def fail_then_open_again():
        try:
            with process_group():
                raise ValueError("on purpose")
        except ValueError:
            pass
        with process_group() as ranks:
            return ranks.world_size

    assert run_function(fail_then_open_again) == [2, 2]


def test_ranks_that_ignore_sigterm_are_killed(write):
    script = write("""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.environ["RANK"] == "1":
            raise KeyError("lost")
        time.sleep(60)
        """)
    assert failing(script, within_s=10).exception_type == "KeyError"


def test_one_that_skips_a_collective_and_goes_on_gets_wrong_sums_silently(write):
    """No launcher can know; chapter 01 shows it. Recorded here so that a change is noticed."""
    script = write("""
        gradient, metric = torch.full((1,), 1.0), torch.full((1,), 10.0)
        with process_group(timeout_s=5) as ranks:
            dist.all_reduce(gradient if ranks.rank == 0 else metric)
            report(gradient=gradient.item())
        """)
    assert run(script).result == {"gradient": 11.0}  # 1 + 1 was meant
