"""Two hosts on one machine: values, the paced rate, refusals by name, and that nothing is left.

The hosts need root and iproute2. Elsewhere these tests are skipped and say why; where
REQUIRE_TWO_HOSTS is set they use sudo if need be, and a skip is red.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from notebook_cells import BOOK

from helpers.two_hosts import CannotMakeHosts, Host, network, torchrun_words, virtual_hosts
from helpers.two_hosts.__main__ import main

PAGE = BOOK / "appendix_two_hosts.md"
PAYLOAD = 1448 / 1514  # of a packet: the rest are headers
COMMAND = [sys.executable, "-B", "-m", "helpers.two_hosts"]


def demand(reason: str, required: bool) -> None:
    """Skips the test for a reason that is not empty; red where hosts are required."""
    if reason and required:
        pytest.fail(f"NO HOSTS: {reason}")
    if reason:
        pytest.skip(f"NO HOSTS: {reason}")


@pytest.fixture(scope="module")
def root() -> list[str]:
    """The words before a command that make it root's."""
    required = bool(os.environ.get("REQUIRE_TWO_HOSTS"))
    prefix = ["sudo", "-n"] if required and os.geteuid() else []
    ask = "from helpers.two_hosts import why_not; print(why_not() or '')"
    done = subprocess.run(
        [*prefix, sys.executable, "-B", "-c", ask], capture_output=True, text=True
    )
    demand(done.stdout.strip() or done.stderr.strip(), required)
    return prefix


def run(root: list[str], *words: str) -> subprocess.CompletedProcess:
    return subprocess.run([*root, *COMMAND, *words], capture_output=True, text=True, timeout=180)


def by_host(output: str) -> list[list[str]]:
    lines = re.findall(r"^\[host (\d)\] (.*)$", output, re.M)
    return [[line for index, line in lines if int(index) == host] for host in (0, 1)]


def page_script() -> str:
    return re.search(r"```python\n(.*?)```", PAGE.read_text(), re.S)[1]


def stem(output: str) -> str:
    """What the namespaces of a run are called, from a command that printed its own."""
    return re.search(r"(book-\d+)-host0", output)[1]


def left_over(stem: str) -> set[str]:
    return {name for name in network.namespaces() if name.startswith(f"{stem}-")}


def test_the_page_s_script_on_two_hosts(root, tmp_path):
    script = tmp_path / "link_speed.py"
    script.write_text(page_script())
    done = run(root, "--rate", "100mbit", "--", str(script))
    assert done.returncode == 0, done.stdout + done.stderr
    said = by_host(done.stdout)
    assert said[1] == []
    found = json.loads(said[0][-1])
    assert found["host_of_rank"] == [0, 1]
    assert found["num_hosts"] == 2
    # The fastest of a few: a busy machine delays messages, and never hastens them.
    fastest_s = [p10_s for _, p10_s, _ in found["seconds"]]
    size = found["sizes_bytes"][1] - found["sizes_bytes"][0]
    rate = size / (fastest_s[1] - fastest_s[0])
    assert rate == pytest.approx(12.5e6 * PAYLOAD, rel=0.15)


FAILING = """
import os
import torch.distributed as dist
from helpers.process_group import process_group
with process_group(backend="gloo", timeout_s=20) as ranks:
    dist.barrier()
    os.system("ip netns identify $$")
    if ranks.rank == 1:
        raise ValueError("found 1 on purpose")
    dist.barrier()
"""


def test_a_script_that_fails_on_one_host_ends_both_and_leaves_nothing(root, tmp_path):
    script = tmp_path / "failing.py"
    script.write_text(FAILING)
    begin_s = time.monotonic()
    done = run(root, "--", str(script))
    assert time.monotonic() - begin_s < 20
    assert done.returncode == 1
    assert "ValueError: found 1 on purpose" in "\n".join(by_host(done.stdout)[1])
    assert re.search(r"two_hosts: host [01]: exit code 1", done.stderr)
    assert left_over(stem(done.stdout)) == set()


def test_any_command_on_three_hosts(root):
    ask = "echo $HOST_INDEX; echo $GLOO_SOCKET_IFNAME; ip -br address show up; ip netns identify $$"
    done = run(root, "--plain", "--hosts", "3", "--rate", "500kbit", "--", "sh", "-c", ask)
    assert done.returncode == 0, done.stderr
    for index in range(3):
        said = "\n".join(re.findall(rf"^\[host {index}\] (.*)$", done.stdout, re.M))
        assert re.match(
            rf"{index}\ne0\nlo .*127\.0\.0\.1/8.*\ne0@\w+ .*10\.77\.0\.{index + 1}/24", said
        )
    assert left_over(stem(done.stdout)) == set()


def test_exit_codes_and_the_time_limit_are_told(root):
    done = run(root, "--plain", "--", "sh", "-c", "exit $((3 * HOST_INDEX))")
    assert (done.returncode, done.stderr) == (3, "two_hosts: host 1: exit code 3\n")
    late = "ip netns identify $$; [ $HOST_INDEX = 0 ] || exec sleep 60"
    done = run(root, "--plain", "--timeout-s", "0.5", "--", "sh", "-c", late)
    assert (done.returncode, done.stderr) == (
        124,
        "two_hosts: after 0.5 s still running on host 1\n",
    )
    assert left_over(stem(done.stdout)) == set()


@pytest.mark.parametrize(
    ("number", "trap"), [(signal.SIGINT, "-"), (signal.SIGTERM, "-"), (signal.SIGKILL, "''")]
)
def test_one_that_is_stopped_leaves_nothing(root, number, trap):
    seconds = f"60.{time.time_ns()}"  # so that this sleep is told from all others
    forever = f"trap {trap} TERM; ip netns identify $$; sleep {seconds} & wait"
    with subprocess.Popen(
        [*root, *COMMAND, "--plain", "--", "sh", "-c", forever], stdout=subprocess.PIPE, text=True
    ) as running:
        up = "".join(running.stdout.readline() for _ in range(2))
        assert len(left_over(stem(up))) == 3
        assert soon(lambda: len(running_with(seconds)) == 2)
        pid = stem(up).removeprefix("book-")
        subprocess.run([*root, "kill", f"-{number.value}", pid], check=True)
    assert soon(lambda: left_over(stem(up)) == set())
    assert soon(lambda: running_with(seconds) == [])


def running_with(word: str) -> list[str]:
    """The processes whose command line holds the word, this test's own apart."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0] == b"sleep" and word.encode() in words:
            found.append(path.parent.name)
    return found


def soon(condition) -> bool:
    """Whether the condition holds within five seconds."""
    end_s = time.monotonic() + 5
    while not (holds := condition()) and time.monotonic() < end_s:
        time.sleep(0.05)
    return holds


def test_kept_hosts_are_kept_until_removed_as_the_command_says(root):
    done = run(root, "--plain", "--keep", "--", "true")
    kept = stem(done.stdout)
    try:
        assert left_over(kept) == {f"{kept}-{name}" for name in ("host0", "host1", "switch")}
    finally:
        remove = re.search(r"to remove them: (.*)", done.stdout)[1]
        subprocess.run([*root, "sh", "-c", remove], check=True)
    assert left_over(kept) == set()


@pytest.fixture
def programs(tmp_path, monkeypatch) -> Path:
    """A folder with an ip and a tc that refuse, for a process that seems to be root's."""
    for name in ("ip", "tc"):
        (tmp_path / name).write_text("#!/bin/sh\necho Operation not permitted >&2\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(network, "PROGRAMS", str(tmp_path))
    monkeypatch.setattr(network.sys, "platform", "linux")
    monkeypatch.setattr(network.os, "geteuid", lambda: 0)
    return tmp_path


def refusal() -> str:
    with pytest.raises(CannotMakeHosts) as refused, virtual_hosts():
        pass
    return str(refused.value)


def test_what_is_missing_is_named(programs, monkeypatch, capsys):
    assert re.match(r"ip netns add book-\d+-switch: Operation not permitted \(", refusal())
    assert network.why_not() == refusal()
    assert main(["--plain", "--", "true"]) == 2
    assert "Operation not permitted" in capsys.readouterr().err
    monkeypatch.setattr(network.os, "geteuid", lambda: 1000)
    assert "need root: start the command with sudo" in refusal()
    (programs / "tc").unlink()
    assert "the program tc is not installed" in refusal()
    monkeypatch.setattr(network.sys, "platform", "darwin")
    assert "Linux's, and this is darwin" in refusal()


@pytest.mark.parametrize(("hosts", "rate"), [(1, "1mbit"), (9, "1mbit"), (2, "fast"), (2, "0mbit")])
def test_what_makes_no_network_is_refused(hosts, rate):
    with pytest.raises(ValueError, match=r"found .*, expected"), virtual_hosts(hosts, rate):
        pass


def test_rates_in_bytes_a_second():
    assert network.bytes_per_s("100mbit") == 12.5e6
    assert network.bytes_per_s("1.5gbit") == 187.5e6
    assert network.bytes_per_s("500kbit") == 62_500


def test_the_words_are_torchrun_s():
    hosts = [Host(i, f"n{i}", f"10.77.0.{i + 1}") for i in range(2)]
    words = torchrun_words(hosts[1], hosts, 4, ["a.py", "--b"])
    assert words[1:] == [
        *("-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=4", "--node-rank=1"),
        *("--master-addr=10.77.0.1", "--master-port=29500", "a.py", "--b"),
    ]
    for word in words[3:5] + words[6:8]:
        assert word.replace("=4", "=1") in PAGE.read_text()


def test_a_skip_is_red_where_hosts_are_required():
    demand("", True)
    with pytest.raises(pytest.skip.Exception, match="NO HOSTS: why"):
        demand("why", False)
    with pytest.raises(pytest.fail.Exception, match="NO HOSTS: why"):
        demand("why", True)


def test_the_page_shows_what_was_recorded():
    recorded = json.loads((BOOK / "measured" / "two_hosts.json").read_text())
    rows = []
    for each in recorded["runs"]:
        for size, seconds in zip(each["sizes_bytes"], each["seconds_median_p10_p90"], strict=True):
            predicted = size / network.bytes_per_s(each["rate"]) / PAYLOAD
            shown, median, low, high = (f"{1e3 * s:.3g}" for s in (predicted, *seconds))
            rows.append(
                f"| {each['rate']} | {size:,} | {shown} ms | {median} ms | {high} and {low} ms |"
            )
            if each["rate"] != "1gbit":
                assert seconds[0] == pytest.approx(predicted, rel=0.05)
    assert len(rows) == 6
    assert "\n".join(rows) in PAGE.read_text()
