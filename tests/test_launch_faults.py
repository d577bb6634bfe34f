"""The launcher's fault table: each way a rank can go wrong, what is said, and how soon."""

import re
import textwrap
import time

import pytest

from helpers.launch import RankFailed, run, run_function
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

    def write(body, name="script.py"):
        (tmp_path / name).write_text(PREAMBLE + textwrap.dedent(body))
        return name

    return write


def failing(script, within_s, **options):
    """The RankFailed of a launch, which must come within `within_s` seconds."""
    start = time.perf_counter()
    with pytest.raises(RankFailed) as caught:
        run(script, **options)
    assert time.perf_counter() - start < within_s
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
    failed = failing(script, within_s=9, nproc_per_node=3, timeout_s=3)
    assert failed.exception_type == "TimeoutError"
    assert failed.message == "not finished after 3 s"
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
        with process_group(timeout_s=2) as ranks:
            if ranks.rank == 0:
                dist.all_reduce(torch.ones(1))
            time.sleep(60)
        """)
    failed = failing(script, within_s=12)
    assert failed.rank == 0
    assert re.search(r"rank 1 stood at script.py:\d+, in <module>: time.sleep\(60\)", str(failed))


def test_a_rank_that_leaves_early_is_told_apart_from_one_that_fails(write):
    script = write("""
        with process_group(timeout_s=30) as ranks:
            if ranks.rank == 0:
                dist.all_reduce(torch.ones(1))
        """)
    failed = failing(script, within_s=10)
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


def test_a_rank_that_vanishes_without_a_word(write):
    failed = failing(
        write("if os.environ['RANK'] == '1': os._exit(7)\ntime.sleep(60)"), within_s=10
    )
    assert failed.rank == 1


def test_a_syntax_error_has_its_line(write):
    failed = failing(write("x = (1,\ny = = 2\n"), within_s=10)
    assert failed.exception_type == "SyntaxError"
    assert re.fullmatch(r"script.py:\d+", failed.location)


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
