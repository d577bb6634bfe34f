"""The launcher: results, output, surroundings; the magic; the same script elsewhere."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from IPython.core.error import UsageError

from helpers.launch import fork_server, report, run, run_function
from helpers.launch.magic import load_ipython_extension, parse, torchrun
from helpers.launch.outcome import RankFailed

SUM = """
'''Launch: torchrun --nproc-per-node 2 sum.py'''
import sys
import torch
import torch.distributed as dist
from helpers.launch import report
from helpers.process_group import process_group

with process_group(timeout_s=20) as ranks:
    total = torch.tensor([ranks.rank])
    dist.all_reduce(total)
    print("hello from", ranks.rank, sys.argv[1:])
    report(total=total)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("sum.py").write_text(SUM)
    return tmp_path


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_result_and_output_by_rank(world_size):
    completed = run("sum.py", "--x", 1, nproc_per_node=world_size)
    assert completed.result == {"total": [sum(range(world_size))]}
    lines = [line for line in completed.output.splitlines() if "hello" in line]
    assert lines == [f"[rank {r}] hello from {r} ['--x', '1']" for r in range(world_size)]
    assert completed.seconds > 0


def test_the_result_is_the_last_line_of_rank_0_that_alone_is_an_object():
    Path("lines.py").write_text(
        "import json, os, sys\n"
        "print(json.dumps({'rank': os.environ['RANK'], 'n': 1}))\n"
        "print(json.dumps({'rank': os.environ['RANK'], 'n': 2}))\n"
        "print('[1, 2]'); print('3'); print('x {}'); print('{not json}')\n"
        "print('{\"n\": 3}', file=sys.stderr)\n"
    )
    assert run("lines.py").result == {"rank": "0", "n": 2}
    Path("none.py").write_text("print('only text')")
    assert run("none.py").result is None


def test_five_runs_of_four_ranks_print_the_same():
    Path("print.py").write_text(
        "import os\nfor i in range(20): print('line', i, 'of rank', os.environ['RANK'])"
    )
    assert len({run("print.py", nproc_per_node=4).output for _ in range(5)}) == 1


def test_a_function_of_this_process_travels_by_value():
    factor = 3

    def triple(value):
        return factor * value, int(os.environ["RANK"])

    assert run_function(triple, 5) == [(15, 0), (15, 1)]
    big = run_function(torch.ones, 1_000_000)  # more than a pipe holds
    assert [t.sum().item() for t in big] == [1e6, 1e6]


def test_a_result_that_cannot_travel_is_that_ranks_failure():
    with pytest.raises(RankFailed, match="cannot pickle"):
        run_function(threading.Lock)


def test_the_callers_surroundings(folder, monkeypatch):
    monkeypatch.setenv("FROM_CALLER", "yes")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def look():
        names = ("FROM_CALLER", "ON_TOP", "MASTER_ADDR", "OMP_NUM_THREADS")
        return [os.environ.get(name) for name in names], os.getcwd(), torch.get_num_threads()

    values, working_folder, threads = run_function(look, env={"ON_TOP": "1"})[1]
    expected = max(1, len(os.sched_getaffinity(0)) // 2)
    assert values == ["yes", "1", "127.0.0.1", str(expected)]
    assert (working_folder, threads) == (str(folder), expected)
    assert run_function(torch.get_num_threads, env={"OMP_NUM_THREADS": "3"}) == [3, 3]
    assert run_function(debug_level, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})[1] == "DETAIL"
    assert run_function(debug_level)[1] == "OFF"


def debug_level():
    return torch.distributed.get_debug_level().name


def test_an_edited_module_is_seen_by_the_next_launch(folder):
    Path("user.py").write_text("import piece; from helpers.launch import report; report(v=piece.V)")
    for value in (1, 22):  # another length: the compiled file is not taken for the new one
        Path("piece.py").write_text(f"V = {value}")
        assert run("user.py").result == {"v": value}


def test_two_launches_at_once_with_port_29500_taken():
    results = {}
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 29500))
        taken.listen()

        def launch(name):
            results[name] = run("sum.py").result

        threads = [threading.Thread(target=launch, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == {"a": {"total": [1]}, "b": {"total": [1]}}


def test_signal_handlers_and_environment_are_as_before():
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    handlers, environment = [signal.getsignal(n) for n in numbers], dict(os.environ)
    run("sum.py")
    Path("bad.py").write_text("raise ValueError")
    with pytest.raises(RankFailed):
        run("bad.py")
    assert [signal.getsignal(n) for n in numbers] == handlers
    assert dict(os.environ) == environment


def test_nothing_is_left_behind(folder, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(folder))
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", None)
    Path("child.py").write_text(
        "import subprocess, sys\n"
        "from helpers.launch import report\n"
        "report(pid=subprocess.Popen(['sleep', '60']).pid)"
    )
    before = {path.name for path in folder.iterdir()} | {"__pycache__"}
    pid = run("child.py", nproc_per_node=1).result["pid"]
    assert {path.name for path in folder.iterdir()} <= before
    status = Path(f"/proc/{pid}/status")
    assert not status.exists() or "Z (zombie)" in status.read_text()


def test_the_fork_server_holds_no_cuda_and_the_ranks_are_fresh():
    def look():
        maps = Path(f"/proc/{os.getppid()}/maps").read_text()
        return "libtorch" in maps, "libcuda.so" in maps, torch.cuda.is_initialized()

    assert run_function(look) == [(True, False, False)] * 2


def test_ranks_draw_numbers_of_their_own_on_every_launch():
    def draw():
        import random

        import numpy as np

        return torch.initial_seed(), random.random(), np.random.rand()

    drawn = [*run_function(draw), *run_function(draw)]
    assert [len(set(column)) for column in zip(*drawn, strict=True)] == [4, 4, 4]


def test_a_data_loaders_workers_start_as_in_a_script_of_its_own():
    Path("load.py").write_text(
        "import multiprocessing, torch\n"
        "from torch.utils.data import DataLoader\n"
        "from helpers.launch import report\n"
        "batches = DataLoader(range(8), num_workers=2, collate_fn=lambda items: sum(items))\n"
        "report(total=sum(batches), method=multiprocessing.get_start_method())"
    )
    alone = in_terminal(sys.executable, "load.py").stdout
    assert run("load.py").result == json.loads(alone)


def test_launches_that_overlap_leave_no_trace():
    import logging

    import torch.distributed.launcher.api  # noqa: F401, for its loggers

    loggers = [logging.getLogger(n) for n in logging.Logger.manager.loggerDict if "elastic" in n]
    threads = [threading.Thread(target=run, args=("sum.py",)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "TORCHELASTIC_SIGNALS_TO_HANDLE" not in os.environ
    assert loggers
    assert not any(logger.disabled for logger in loggers)


def test_a_launch_writes_nothing_into_a_log(caplog):
    import logging

    events = logging.getLogger("torchelastic-events-null")
    events.addHandler(caplog.handler)
    try:
        run("sum.py")
    finally:
        events.removeHandler(caplog.handler)
    assert not caplog.records


def test_bad_arguments_are_refused():
    for env in ({"X": None}, {"X": 3}, {"PYTHONHASHSEED": "0"}, {"OMP_NUM_THREADS": "none"}):
        with pytest.raises(ValueError, match=next(iter(env))):
            run("sum.py", env=env)
    with pytest.raises(ValueError, match="nproc_per_node is '2'"):
        run("sum.py", nproc_per_node="2")
    with pytest.raises(ValueError, match="timeout_s is inf"):
        run("sum.py", timeout_s=float("inf"))
    with pytest.raises(ValueError, match="nproc_per_node is 0"):
        run("sum.py", nproc_per_node=0)
    with pytest.raises(ValueError, match="timeout_s is -1"):
        run("sum.py", timeout_s=-1)


def test_windows_is_told_to_use_wsl(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(RuntimeError, match="use WSL"):
        run("sum.py")


def test_report_prints_on_rank_0_only(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    report(x=1)
    assert capsys.readouterr().out == ""
    monkeypatch.setenv("RANK", "0")
    report(x=torch.ones(2), y=None)
    assert capsys.readouterr().out == '{"x": [1.0, 1.0], "y": null}\n'
    with pytest.raises(TypeError, match="object"):
        report(x=object())


# The magic.


def test_the_magic_prints_by_rank_less_the_report_which_it_returns(capsys):
    assert torchrun("--nproc-per-node 2 sum.py --x 'a b'") == {"total": [1]}
    printed = capsys.readouterr().out
    assert printed == "".join(f"[rank {r}] hello from {r} ['--x', 'a b']\n" for r in (0, 1))


def test_the_magic_prints_earlier_objects_and_what_follows_the_last_one(capsys):
    Path("lines.py").write_text('print(\'{"n": 1}\\n{"n": 2}\\nafter\', end="")')
    assert torchrun("lines.py") == {"n": 2}
    assert capsys.readouterr().out == '[rank 0] {"n": 1}\n[rank 0] after\n'


def test_the_magic_cuts_what_is_too_long_and_says_so(capsys):
    Path("long.py").write_text(
        "import sys, time\n"
        "from helpers.launch import report\n"
        "print('line 0')\n"
        "time.sleep(0.5)\n"  # so that it is heard before so much comes that it is cut
        "print('\\n'.join(f'line {i}' for i in range(1, 400_000)))\n"
        "print('e' * 99 + '\\n' * 3_000_000, file=sys.stderr)\n"
        "report(x='y' * 2_000_000)"
    )
    assert len(torchrun("long.py")["x"]) == 2_000_000
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "[rank 0] line 0"
    assert sum("bytes cut" in line for line in lines) == 2  # of stdout, of stderr
    assert not any("yyy" in line for line in lines)


def test_rank_0_is_heard_while_it_still_runs():
    from helpers.launch.launcher import run_and_echo

    Path("slow.py").write_text("import time\nprint('now')\ntime.sleep(1.5)\nprint('later')")
    heard = []
    run_and_echo("slow.py", (), 1, 30.0, None, heard.append)
    assert [text for text in heard if text] == ["[rank 0] now\n", "[rank 0] later\n"]


@pytest.mark.parametrize(
    ("line", "count", "arguments"),
    [
        ("--nproc-per-node 2 sum.py", 2, ()),
        ("--nproc_per_node=4 sum.py --lr 0.1", 4, ("--lr", "0.1")),
        ("--standalone --nproc-per-node 3 sum.py --nnodes", 3, ("--nnodes",)),
        ("sum.py", 1, ()),
    ],
)
def test_the_words_of_torchrun(line, count, arguments):
    command = parse(line)
    assert (command.nproc_per_node, command.script) == (count, "sum.py")
    assert command.arguments == arguments


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--nnodes 2 sum.py", "--nnodes is for torchrun in a terminal"),
        ("--tee 3 sum.py", "--tee is for torchrun in a terminal"),
        ("--procs 2 sum.py", "torchrun has no option --procs"),
        ("--nproc-per-node two sum.py", "--nproc-per-node is 'two'"),
        ("--nproc-per-node 0 sum.py", "--nproc-per-node is '0'"),
        pytest.param(
            "--nproc-per-node gpu sum.py",
            "found no GPU",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is one"),
        ),
        ("--nproc-per-node 2", "no script named"),
    ],
)
def test_what_the_magic_cannot_do_is_refused_by_name(line, message):
    with pytest.raises(ValueError, match=message):
        parse(line)


def test_a_mistake_in_the_line_is_one_line():
    with pytest.raises(UsageError, match="no script named"):
        torchrun("--nproc-per-node 2")


def test_the_extension_registers_the_magic():
    registered = {}

    class Shell:
        def register_magic_function(self, function, kind):
            registered[function.__name__] = kind

    load_ipython_extension(Shell())
    assert registered == {"torchrun": "line"}


def test_a_failure_in_jupyter_shows_the_ranks_words_only():
    shown = RankFailed(1, "ValueError", "no", "a.py:3", "  a.py:3, in f: g()")._render_traceback_()
    assert shown == ["RankFailed: rank 1: ValueError: no (a.py:3)\n  a.py:3, in f: g()"]


# The same script elsewhere.


def in_terminal(*words, **options):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        words, capture_output=True, text=True, timeout=180, env=environment, **options
    )


def test_the_same_script_under_plain_torchrun_and_plain_python():
    torchrun_command = str(Path(sys.executable).with_name("torchrun"))
    under_torchrun = in_terminal(torchrun_command, "--standalone", "--nproc-per-node=2", "sum.py")
    assert '{"total": [1]}' in under_torchrun.stdout, under_torchrun.stderr
    alone = in_terminal(sys.executable, "sum.py")
    assert '{"total": [0]}' in alone.stdout
    assert alone.stderr.count("\n") == 1  # the hint


NAMES = "localhost", "no-such-host.invalid"
LAUNCH = f"""
if __name__ == '__main__':
    import socket
    from helpers.launch import run
    for name in {NAMES}:
        socket.sethostname(name)
        print(run('sum.py').result)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root for a network namespace")
def test_loopback_alone_is_enough_whatever_the_host_is_called():
    Path("launch.py").write_text(LAUNCH)
    setting = f"ip link set lo up && exec {shlex.quote(sys.executable)} launch.py"
    done = in_terminal("unshare", "--net", "--uts", "sh", "-c", setting)
    assert done.stdout == len(NAMES) * "{'total': [1]}\n", done.stderr


def leave_a_pool_open():
    threading.kept = ThreadPoolExecutor(1)  # one that nobody refers to ends by itself
    return threading.kept.submit(int, "5").result()


def launch_within():
    return run_function(int, "5", nproc_per_node=2)


def test_a_pool_of_threads_left_open_ends_with_its_rank():
    assert run_function(leave_a_pool_open, timeout_s=20) == [5, 5]


def test_a_rank_may_launch_ranks_of_its_own():
    assert run_function(launch_within, nproc_per_node=1) == [[5, 5]]


def where_the_store_listens():
    """Addresses, as /proc writes them, at which something listens on this rank's MASTER_PORT."""
    port, found = f"{int(os.environ['MASTER_PORT']):04X}", set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            local, state = line.split()[1::2][:2]
            address, _, its_port = local.partition(":")
            if its_port == port and state == "0A":
                found.add(address)
    return found


@pytest.mark.skipif(not Path("/proc/net/tcp6").exists(), reason="needs Linux's list of sockets")
def test_the_ranks_store_listens_on_loopback_only():
    assert run_function(where_the_store_listens, nproc_per_node=1) == [{"0100007F"}]


def test_a_launching_script_needs_no_guard_and_is_not_run_again_by_its_ranks():
    Path("plain.py").write_text(
        "print('once')\nfrom helpers.launch import run\nprint(run('sum.py').result)"
    )
    assert in_terminal(sys.executable, "plain.py").stdout == "once\n{'total': [1]}\n"


def test_the_preloaded_modules_exist():
    import importlib

    for name in fork_server.PRELOAD[:-1]:  # the last one ties its process to its parent
        importlib.import_module(name)
