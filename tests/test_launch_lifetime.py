"""Interrupting, restarting and killing what launches, as ranks start or run: nothing lives on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from jupyter_client.manager import start_new_kernel

WAITING = """
'''Every rank writes its pid and the fork server's, then waits: on a clock, or in a collective.'''
import os, time
from pathlib import Path
import torch
import torch.distributed as dist
from helpers.process_group import process_group

with process_group(timeout_s=100) as ranks:
    Path(f"pids-{ranks.rank}").write_text(f"{os.getpid()} {os.getppid()}")
    if ranks.rank == 0:
        dist.all_reduce(torch.ones(1))
    time.sleep(100)
"""


@pytest.fixture
def kernel(tmp_path):
    (tmp_path / "waiting.py").write_text(WAITING)
    (tmp_path / "done.py").write_text("print('done')")
    manager, client = start_new_kernel(
        startup_timeout=180, kernel_name="python3", cwd=str(tmp_path)
    )
    client.execute_interactive("%load_ext helpers.launch", timeout=120)
    yield manager, client, tmp_path
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def start_waiting(client, folder):
    """Start the waiting ranks from a cell; return their pids once all of them wait."""
    for old in folder.glob("pids-*"):
        old.unlink()
    client.execute("%torchrun --nproc-per-node 2 waiting.py")
    deadline = time.monotonic() + 120
    while len(files := list(folder.glob("pids-*"))) < 2:
        assert time.monotonic() < deadline, "the ranks did not start"
        time.sleep(0.05)
    time.sleep(0.3)
    pids = {int(pid) for file in files for pid in file.read_text().split()}
    assert len(pids) == 3  # two ranks and their fork server
    return pids


def alive(pids):
    def runs(pid):
        status = Path(f"/proc/{pid}/status")
        return status.exists() and "Z (zombie)" not in status.read_text()

    return {pid for pid in pids if runs(pid)}


def all_gone(pids, within_s=25.0):
    deadline = time.monotonic() + within_s
    while alive(pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive(pids)


def outcome(client):
    """(error name or None, stdout) of the cell that runs."""
    name, stdout = None, []
    while True:
        message = client.get_iopub_msg(timeout=120)
        content = message["content"]
        if message["msg_type"] == "stream":
            stdout.append(content["text"])
        elif message["msg_type"] == "error":
            name = content["ename"]
        elif message["msg_type"] == "status" and content["execution_state"] == "idle":
            return name, "".join(stdout)


def test_an_interrupt_ends_the_ranks_and_the_kernel_goes_on_and_a_restart_ends_all(kernel):
    manager, client, folder = kernel
    while client.iopub_channel.msg_ready():
        client.get_iopub_msg()
    pids = start_waiting(client, folder)
    fork_server = {int(file.read_text().split()[1]) for file in folder.glob("pids-*")}
    manager.interrupt_kernel()
    assert outcome(client)[0] == "KeyboardInterrupt"
    assert all_gone(pids - fork_server)
    assert alive(fork_server) == fork_server  # ready for the next launch
    client.execute("%torchrun done.py")
    assert outcome(client) == (None, "[rank 0] done\n")
    pids = start_waiting(client, folder)
    manager.restart_kernel(now=True)
    assert all_gone(pids), f"still alive: {alive(pids)}"


@pytest.mark.parametrize("end", ["SIGKILL", "SIGTERM"])
def test_no_process_outlives_the_kernel(kernel, end):
    manager, client, folder = kernel
    pids = start_waiting(client, folder)
    os.kill(manager.provisioner.pid, getattr(signal, end))
    assert all_gone(pids), f"still alive: {alive(pids)}"


INTERRUPTED = """
import threading
from helpers.launch import fork_server

start = threading.Thread.start

def interrupted_start(thread):
    start(thread)
    if "keeper" in thread.name:
        raise KeyboardInterrupt

threading.Thread.start = interrupted_start
try:
    fork_server.prepare()
except KeyboardInterrupt:
    print("interrupted")
"""
FORKED = """
import os, signal, sys
from helpers.launch import fork_server

fork_server.prepare()
if pid := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
signal.alarm(20)
fork_server.prepare()
"""
TERMINATED = """
import os, signal
from helpers.launch import fork_server, run_function

fork_server.prepare = lambda: os.kill(os.getpid(), signal.SIGTERM)
run_function(print)
"""


def ended(code, folder, within_s=30.0):
    """Run code in a process of its own with its temporary files in `folder`; how it ended."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=within_s,
        check=False,
    )


def test_an_interrupt_while_the_keeper_starts_is_no_hang_at_the_end(tmp_path):
    done = ended(INTERRUPTED, tmp_path)
    assert (done.returncode, done.stdout) == (0, "interrupted\n")
    assert list(tmp_path.iterdir()) == []


def test_a_forked_process_is_told_that_the_fork_server_is_not_its_own(tmp_path):
    done = ended(FORKED, tmp_path)
    assert done.returncode == 1
    assert "RuntimeError: found the fork server of the process" in done.stderr


def test_sigterm_during_a_launch_ends_the_process_and_leaves_no_folder(tmp_path):
    done = ended(TERMINATED, tmp_path)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "")
    assert list(tmp_path.iterdir()) == []


DIES_AS_IT_ASKS = """
import os, time
from multiprocessing import forkserver
from helpers.launch import run_function

forkserver.read_signed = lambda answer: os._exit(9)
run_function(time.sleep, 100, nproc_per_node=1)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_rank_starts_for_a_launcher_that_died_while_the_fork_server_was_loading(tmp_path):
    mark = f"TMPDIR={tmp_path}"
    assert ended(DIES_AS_IT_ASKS, tmp_path).returncode == 9
    pids = [int(each.parent.name) for each in Path("/proc").glob("[0-9]*/environ")
            if mark.encode() in _read(each)]  # fmt: skip
    assert all_gone(pids), f"still alive: {alive(pids)}"


def _read(path):
    try:
        return path.read_bytes()
    except OSError:  # ended meanwhile, or another user's
        return b""
