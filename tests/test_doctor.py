"""The doctor: every line of its advice for an injected fault, none without, and never a hang."""

import dataclasses
import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from doctor_faults import BAD_FAULTS, FAULTS, GPUS, SOUND, SUMMED, SUMS, late
from notebook_cells import ROOT, chapters

from helpers import doctor
from helpers.doctor import (
    all_reduce,
    ask,
    book,
    cgroup,
    command,
    examine,
    gpu_child,
    gpus,
    host,
    memory,
    network,
    nvidia,
    table,
    torch_build,
)
from helpers.doctor.advice import ADVICE
from helpers.doctor.arguments import parse
from helpers.doctor.ask import Answer
from helpers.doctor.row import BAD, OK, WARN, Row, without_names
from helpers.process_group import TORCHRUN_VARIABLES

COMMAND = [sys.executable, "-B", "-m", "helpers.doctor"]


# advice


def test_every_advice_has_a_fault():
    assert set(FAULTS) == set(ADVICE)
    assert set(FAULTS) > BAD_FAULTS


@pytest.mark.parametrize("name", ADVICE)
def test_a_fault_brings_its_advice_and_the_right_verdict(name):
    rows = FAULTS[name]()
    advised = [row for row in rows if name in row.advice]
    assert len(advised) == 1
    assert advised[0].verdict == (BAD if name in BAD_FAULTS else WARN)
    others = [row for row in rows if row.verdict != OK and row not in advised]
    assert others == []
    assert ADVICE[name].split()[0] in table.block(rows)


@pytest.mark.parametrize("name", SOUND)
def test_without_a_fault_there_is_no_advice(name):
    rows = SOUND[name]()
    assert rows
    assert [row for row in rows if row.verdict != OK] == []


def test_a_home_is_named_by_nobody(monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    row = Row("a", "b", "no such file: /home/somebody/torch.so")
    assert without_names(row).found == "no such file: ~/torch.so"
    monkeypatch.setenv("HOME", "/")
    assert without_names(row).found == "no such file: ~/torch.so"
    row = Row("a", "b", "no such file: /srv/torch.so")
    assert without_names(row) == row


def test_a_host_is_named_by_nobody(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "node7")
    row = Row("a", "b", "node7:29500 and node7.example, not node70 or my-node7")
    found = "this host:29500 and this host.example, not node70 or my-node7"
    assert without_names(row).found == found


def test_what_moves_a_terminal_s_cursor_is_not_printed():
    assert table.block([Row("a", "b", "\x1b[31mred\nline")]).splitlines()[1:] == [
        "  ok    b  ?[31mred",
        "          line",
    ]


def test_a_row_is_advised_where_it_is_not_ok_and_nowhere_else():
    for verdict, advice, said in ((WARN, (), "with advice"), (OK, ("port",), "with advice")):
        with pytest.raises(ValueError, match=said):
            Row("a", "b", "c", verdict, advice)
    with pytest.raises(ValueError, match="no advice is called"):
        Row("a", "b", "c", BAD, ("prayer",))
    with pytest.raises(ValueError, match="expected ok, warn or bad"):
        Row("a", "b", "c", "fine")


def test_a_time_out_of_nccl_is_told_more_than_a_fault_of_a_rank():
    (row,) = late("nccl")()
    words = " ".join(ADVICE[name] for name in row.advice)
    assert all(word in words for word in ("NCCL_DEBUG", "P2P", "IOMMU", "NCCL_SOCKET_IFNAME"))
    (row,) = FAULTS["all_reduce_failed"]()
    assert "IOMMU" not in " ".join(ADVICE[name] for name in row.advice)


def test_a_wrong_sum_is_placed():
    (row,) = FAULTS["wrong_sum"]()
    assert row.found == "rank 1 holds 22 at 7, expected 21"
    half = dataclasses.replace(SUMMED, sums=(SUMS, SUMS[:-1]))
    assert all_reduce.first_wrong(half) == "rank 1 holds 999 numbers, expected 1000"
    alone = tuple(number / 3 for number in SUMS)  # as if nothing had been summed, on any rank
    assert all_reduce.first_wrong(dataclasses.replace(SUMMED, sums=(alone, alone))) == (
        "rank 0 holds 1 at 1, expected 3"
    )
    assert "expected 2" in all_reduce.first_wrong(dataclasses.replace(SUMMED, sums=(SUMS,)))


# what is asked


def test_a_program_is_asked_for_so_long_and_not_longer():
    nothing = ask.said_by(["no-such-program"], 1.0)
    assert (nothing.is_absent, nothing.trouble) == (True, "no-such-program is not installed")
    assert ask.said_by(["sh", "-c", "echo hello"], 5.0) == Answer("hello")
    failed = ask.said_by(["sh", "-c", "echo no driver >&2; exit 9"], 5.0)
    assert failed.trouble == "no driver"
    assert ask.said_by(["sleep", "60"], 0.1).trouble == "no answer from sleep within 0.1 s"


@pytest.mark.parametrize(
    ("script", "answer"),
    [
        ("yes", Answer(trouble=f"sh says more than {ask.MOST_BYTES} bytes")),
        ("sleep 60 & echo done", Answer("done")),  # a child that holds the pipe is not waited for
        ("trap '' TERM; sleep 60; true", Answer(trouble="no answer from sh within 0.5 s")),
        (r"printf '\377 \033[1mno\n' >&2; exit 9", Answer(trouble="\ufffd [1mno")),
    ],
)
def test_a_program_s_flood_and_its_children_end_with_it(script, answer, tmp_path):
    words = ["sh", "-c", f"echo $$ > {tmp_path}/group; {script}"]
    assert ask.said_by(words, 5.0 if "trap" not in script else 0.5) == answer
    group = (tmp_path / "group").read_text().strip()
    listed = subprocess.check_output(["ps", "-A", "-o", "pgid=,stat="], text=True)
    members = [state for number, state in map(str.split, listed.splitlines()) if number == group]
    assert all("Z" in state for state in members)  # ended, and soon taken away


def test_what_is_quoted_is_one_line_and_not_long():
    assert ask.one_line("a\tb\x00\n c") == "a b c"
    assert ask.one_line(400 * "9") == ask.MOST_LETTERS * "9" + " ..."


def test_a_function_s_answer_and_its_error_come_back():
    assert ask.within(5.0, sum, [1, 2]) == 3
    with pytest.raises(ZeroDivisionError):
        ask.within(5.0, lambda: 1 / 0)


@pytest.mark.parametrize(
    ("files", "own", "limits"),
    [
        ({}, "0::/\n", (None, None, None)),
        (
            {"memory.max": "4096", "memory.current": "96", "cpu.max": "150000 100000"},
            "0::/\n",
            (4096, 96, 1.5),
        ),
        # The tighter limit is that of the group above.
        (
            {"a/b/memory.max": "max", "a/memory.max": "2048", "a/memory.current": "1",
             "a/b/cpu.max": "max 100000"},
            "0::/a/b\n",
            (2048, 1, None),
        ),
        # Two limits of each: the tighter ones, wherever they stand.
        (
            {"a/memory.max": "2048", "a/memory.current": "7", "memory.max": "4096",
             "a/cpu.max": "200000 100000", "cpu.max": "100000 100000"},
            "0::/a\n",
            (2048, 7, 1.0),
        ),
        # Version 1, from inside the container: the group's path leads nowhere.
        (
            {"memory/memory.limit_in_bytes": "4096", "memory/memory.usage_in_bytes": "5",
             "cpu,cpuacct/cpu.cfs_quota_us": "50000", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
            "4:memory:/docker/1\n1:cpu,cpuacct:/docker/1\n",
            (4096, 5, 0.5),
        ),
        (
            {"memory/memory.limit_in_bytes": "9223372036854771712",
             "cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
            "4:memory:/\n1:cpu:/\n",
            (None, None, None),
        ),
    ],
)  # fmt: skip
def test_a_container_s_limits_are_read_in_both_versions(tmp_path, files, own, limits):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    (tmp_path / "own").write_text(own)
    assert dataclasses.astuple(cgroup.read(tmp_path, tmp_path / "own")) == limits


def test_the_variables_are_those_of_the_process_group():
    assert host.TORCHRUN_VARIABLES == TORCHRUN_VARIABLES


def test_a_temporary_folder_that_takes_nothing_is_bad(monkeypatch):
    def fail(**options):
        raise OSError(30, "Read-only file system")

    assert memory.read().temporary_trouble == ""
    monkeypatch.setattr(memory.tempfile, "TemporaryFile", fail)
    assert memory.read().temporary_trouble == "Read-only file system"


def test_a_shared_memory_that_is_absent_or_full_is_bad(tmp_path):
    absent = memory.read(shm=str(tmp_path / "none"))
    assert absent.shm_bytes is None
    (row,) = (row for row in memory.rows(absent, 0) if row.name == "/dev/shm")
    assert (row.found, row.verdict) == ("absent", BAD)
    full = dataclasses.replace(absent, shm_bytes=2**30, shm_free_bytes=2**20)
    (row,) = (row for row in memory.rows(full, 0) if row.name == "/dev/shm")
    assert row.verdict == BAD


# the network


def name_row(resolve) -> Row:
    return network.rows(network.read(0, resolve), 0)[0]


def test_a_name_that_does_not_resolve_and_a_resolver_that_hangs(monkeypatch):
    def fail(name):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(network, "RESOLVE_LIMIT_S", 0.05)
    assert name_row(fail).advice == ("host_name",)
    hung = name_row(lambda name: threading.Event().wait())
    assert (hung.found, hung.advice) == ("resolver: no answer within 0.05 s", ("host_name",))
    assert name_row(lambda name: ["10.1.2.3"]).found == "resolves to an address of its own"
    assert name_row(lambda name: ["fe80::1%eth0", "127.0.1.1"]).found == "resolves to loopback"


@pytest.mark.parametrize(
    ("number", "advice"), [(errno.EADDRNOTAVAIL, "loopback"), (errno.EADDRINUSE, "no_port")]
)
def test_no_loopback_is_bad_and_told_from_no_port(number, advice, monkeypatch):
    def refuse(*arguments, **options):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket, "create_server", refuse)
    row = network.rows(network.read(0, lambda name: ["127.0.0.1"]), 0)[1]
    assert (row.verdict, row.advice) == (BAD, (advice,))


def test_a_port_that_is_denied_is_not_taken(monkeypatch):
    def deny(*arguments):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", deny)
    assert network._port_trouble(80) == "Permission denied"


@pytest.mark.parametrize(
    ("setting", "interface", "matches"),
    [
        ("eth", "eth0", True),
        ("=eth", "eth0", False),
        ("=eth0,eth1", "eth1", True),
        ("^docker,lo", "lo", False),
        ("^docker,lo", "eth0", True),
        ("^=lo", "lo0", True),
    ],
)
def test_names_of_interfaces_as_nccl_reads_them(setting, interface, matches):
    assert network.matches_nccl(setting, interface) is matches


# GPUs: readings made up, since these tests run without


MATRIX = """\
\x1b[4m\tGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \tNV4\tSYS\tPIX\t0-31\t0
GPU1\tNV4\t X \tSYS\tPIX\t0-31\t0
GPU2\tSYS\tSYS\t X \tSYS\t32-63\t1
NIC0\tPIX\tPIX\tSYS\t X

Legend:
  SYS  = Connection traversing PCIe
"""


def test_drivers_and_links_are_read_from_nvidia_smi(tmp_path):
    said = {
        nvidia.QUERY: Answer("580.65.06, NVIDIA A\n580.65.06, NVIDIA A\n580.65.06, NVIDIA A"),
        nvidia.TOPOLOGY: Answer(MATRIX),
    }
    found = nvidia.read(lambda words, limit_s: said[words], str(tmp_path))
    assert found == nvidia.Nvidia("580.65.06", ("NVIDIA A",) * 3, "", (("NV4", 1), ("SYS", 2)))


def test_a_driver_that_does_not_answer_is_told_from_none(tmp_path):
    absent = Answer(trouble="nvidia-smi is not installed", is_absent=True)
    assert nvidia.read(lambda *_: absent, str(tmp_path)) == nvidia.Nvidia()
    silent = Answer(trouble="no answer within 10 s")
    assert nvidia.read(lambda *_: silent, str(tmp_path)).trouble == silent.trouble
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15\n")
    found = nvidia.read(lambda *_: absent, str(tmp_path))
    assert (found.driver, found.trouble) == ("570.86.15", absent.trouble)


@pytest.mark.parametrize(
    ("said", "trouble"),
    [
        ("%%%% , !!!\n,,,\nwhat, ever", "nvidia-smi makes no sense"),
        ("\ufffd\ufffd, NVIDIA", "nvidia-smi makes no sense"),
        ("", "nvidia-smi makes no sense"),
        ("No devices were found", "No devices were found"),
    ],
)
def test_nonsense_is_no_driver(said, trouble, tmp_path):
    assert nvidia.read(lambda *_: Answer(said), str(tmp_path)) == nvidia.Nvidia(trouble=trouble)


@pytest.mark.parametrize(
    ("driver", "cuda"),
    [("580.65.06", 13), ("595.1", 13), ("579.9", 12), ("525.60.13", 12), ("524", 11), ("", 0)],
)
def test_the_newest_cuda_of_a_driver(driver, cuda):
    assert torch_build.newest_cuda(driver) == cuda


@pytest.mark.parametrize(
    ("system", "driver", "has_amd", "words"),
    [
        ("Linux", "", False, "the CPU's: no GPU"),
        ("Linux", "580.65.06", False, "CUDA 13 or older"),
        ("Linux", "535.1", False, "CUDA 12 or older"),
        ("Linux", "470.1", False, "until the driver 470.1 is renewed"),
        ("Linux", "", True, "ROCm"),
        ("Darwin", "", False, "macOS"),
    ],
)
def test_which_build_of_torch_would_suit(system, driver, has_amd, words):
    there = nvidia.Nvidia(driver, ("NVIDIA A",) if driver else ())
    assert words in torch_build.suitable_build(system, there, has_amd)


@pytest.mark.parametrize(
    ("version", "verdict"),
    [("2.10.0", WARN), ("2.11.0+cpu", OK), ("2.14.1", OK), ("2.15.0", WARN), ("3.0.0", WARN)],
)
def test_versions_of_torch_that_the_book_keeps_to(version, verdict):
    rows = torch_build.rows(torch_build.Torch(version, "", "", ("gloo",)), nvidia.Nvidia(), False)
    assert rows[0].verdict == verdict


@pytest.mark.parametrize("reach", [((1,), ()), ((), (0,))])
def test_access_one_way_is_no_peer_access(reach):
    pair = (dataclasses.replace(gpu, reaches=r) for gpu, r in zip(GPUS.gpus, reach, strict=True))
    rows = gpus.rows(dataclasses.replace(GPUS, gpus=tuple(pair)), nvidia.Nvidia(), 2)
    assert [row.found for row in rows if row.advice == ("no_p2p",)] == ["not between 0-1"]


def test_an_iommu_that_lets_devices_pass_is_none(tmp_path):
    boot, units = tmp_path / "cmdline", tmp_path / "iommu"
    boot.write_text("quiet intel_iommu=on")
    assert not gpus._has_iommu(units, boot)
    (units / "dmar0").mkdir(parents=True)
    assert gpus._has_iommu(units, boot)
    boot.write_text("quiet intel_iommu=on iommu=pt")
    assert not gpus._has_iommu(units, boot)


def test_gpus_are_read_from_a_process_of_their_own():
    told = {"gpus": [dataclasses.asdict(gpu) for gpu in GPUS.gpus], "trouble": ""}
    noise = "a library's banner\n"
    found = gpus.read(lambda *_: Answer(noise + json.dumps(told)))
    assert (found.gpus, found.trouble) == (GPUS.gpus, "")
    for answer in (Answer(trouble="no answer within 60 s"), Answer("not JSON"), Answer()):
        found = gpus.read(lambda *_, answer=answer: answer)
        assert found.trouble == answer.trouble or "no sense" in found.trouble
        assert gpus.rows(found, nvidia.Nvidia(), 2)[0].advice == ("gpus_silent",)


def test_the_process_names_what_keeps_it_from_the_gpus(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert gpu_child.look() == {"gpus": [], "trouble": ""}

    def fail():
        raise RuntimeError("CUDA error: unknown error\nmore")

    monkeypatch.setattr("torch.cuda.device_count", fail)
    assert gpu_child.look() == {"gpus": [], "trouble": "CUDA error: unknown error"}


# the all-reduce, on ranks


def hang(backend, timeout_s):
    from helpers.process_group import process_group

    with process_group(backend=backend, timeout_s=timeout_s) as ranks:
        if ranks.rank == 1:
            time.sleep(60)
        import torch

        torch.distributed.barrier()
    return [], 0.0


def test_a_rank_that_hangs_ends_at_the_limit_with_advice():
    found = all_reduce.measure("gloo", 2, limit_s=1.0, on_rank=hang)
    assert found.is_timeout
    row = all_reduce.row(found)
    assert row.found.startswith("rank 0: TimeoutError: not finished after 1 s")
    assert "rank 1 stood at" in row.found
    assert row.advice == ("gloo_interfaces", "busy")


def leave(backend, timeout_s):
    if os.environ["RANK"] == "1":
        raise MemoryError("a rank's own trouble")
    return all_reduce.sum_on_rank(backend, timeout_s)


def test_a_rank_that_fails_is_quoted():
    row = all_reduce.row(all_reduce.measure("gloo", 2, limit_s=10.0, on_rank=leave))
    assert row.found.startswith("rank 1: MemoryError: a rank's own trouble")
    assert row.advice == ("all_reduce_failed",)


def test_nccl_without_a_gpu_is_a_finding(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    row = all_reduce.row(all_reduce.measure("nccl", 1, limit_s=10.0))
    assert row.verdict == BAD
    assert "nccl needs a GPU for each rank" in row.found


# the book


def test_chapters_say_how_long_they_run():
    found = book.read()
    numbered = [path.name[:2] for path in chapters() if path.name[0].isdigit()]
    assert [chapter.title[:2] for chapter in found] == numbered
    assert all(5 <= chapter.seconds <= 120 for chapter in found)
    readme = (ROOT / "README.md").read_text()
    assert f"about {book.TEST_S / 60:.0f} minutes on two slow cores" in readme


def test_what_will_run_follows_the_machine(tmp_path):
    on_gpus, on_cpu, alone = (
        book.Chapter("01 One", 20, "CPU; GPUs with no cell changed", True),
        book.Chapter("02 Two", 40, "CPU", True),
        book.Chapter("03 Three", 60, "CPU", False),
    )
    said = [[book.backends(c, n) for c in (on_gpus, on_cpu, alone)] for n in (0, 1, 4)]
    assert said[0] == ["gloo on the CPU", "gloo on the CPU", "one process, CPU"]
    assert "world of one" in said[1][0]
    assert said[2][0] == "nccl up to 4 ranks, gloo on the CPU above"
    assert said[2][1:] == said[0][1:]
    slow = book.rows([on_gpus, on_cpu, alone], 0, 2 * book.REFERENCE_LAUNCH_S)
    assert [row.found.rpartition("about ")[2] for row in slow[:3]] == ["40 s", "80 s", "2 min"]
    assert slow[3].found.startswith("about 4 min")
    assert book.slowness(1e-3) == book.LEAST_FACTOR
    assert book.slowness(None) == 1
    (tmp_path / "01_broken.ipynb").write_text("{")
    assert book.read(tmp_path) == []


# the command


@pytest.mark.parametrize(
    "words",
    [
        *(["--ranks", "0"], ["--ranks", "two"], ["--port", "70000"], ["--json", "x.txt"], ["x"]),
        ["--json", "folder.json"],
    ],
)
def test_wrong_words_are_refused_with_2(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(SystemExit) as left:
        parse(words)
    assert left.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_a_sound_machine_in_a_table_and_as_json(tmp_path, capsys, monkeypatch):
    for name in ("OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME", *TORCHRUN_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "doctor.json"
    code = doctor.main(["--json", str(path)])
    told = json.loads(path.read_text())
    by_name = {(row["topic"], row["name"]): row for row in told["rows"]}
    assert by_name["all-reduce", "gloo, 2 ranks"]["verdict"] == "ok"
    assert {row["topic"] for row in told["rows"]} == {
        *("machine", "memory", "network", "torch", "GPUs", "all-reduce", "the book, here")
    }
    assert code == int(told["is_any_bad"]) == int(any(r["verdict"] == "bad" for r in told["rows"]))
    out = capsys.readouterr().out
    assert all(row["name"] in out for row in told["rows"])
    assert re.search(rf"^{sum(r['verdict'] == 'ok' for r in told['rows'])} ok, ", out, re.M)
    assert socket.gethostname() not in re.findall(r"[\w.-]+", path.read_text() + out)


def test_faults_of_the_environment_are_bad_in_the_record_alone(capsys, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch0")
    monkeypatch.setenv("OMP_NUM_THREADS", "99")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code = doctor.main(["--json", "-", "--port", str(taken.getsockname()[1])])
    out = capsys.readouterr().out
    found = {name: row["verdict"] for row in json.loads(out)["rows"] for name in row["advice"]}
    expected = {"gloo_interface": "bad", "omp_too_many": "warn", "torchrun_variables": "warn"}
    expected |= {"port": "warn", "all_reduce_failed": "bad"}
    assert found.items() >= expected.items()
    assert code == 1


def test_without_torch_all_else_is_still_told(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)  # importing it raises ImportError
    assert doctor.main([]) == 1
    out = capsys.readouterr().out
    assert "halted" in out  # Python's own words for such a module
    assert "all-reduce\n" not in out
    assert "about 20 s" in out


def test_a_check_that_fails_ends_nothing(monkeypatch, capsys):
    monkeypatch.setattr(host, "read", lambda num_ranks: 1 / 0)
    monkeypatch.setattr(torch_build, "read", threading.Event().wait)
    monkeypatch.setattr(examine, "IMPORT_LIMIT_S", 0.05)
    assert doctor.main([]) == 1
    out = capsys.readouterr().out
    assert "ZeroDivisionError" in out
    assert "no answer within 0.05 s" in out
    assert "all chapters" in out


def test_without_loopback_no_rank_is_started(monkeypatch, capsys):
    monkeypatch.setattr(network, "_meet", lambda: "sockets cannot meet")
    monkeypatch.setattr(all_reduce, "measure", lambda *_, **__: pytest.fail("ranks were started"))
    assert doctor.main([]) == 1
    out = capsys.readouterr().out
    assert "not tried: ranks meet over loopback" in out
    assert out.count("ip link set lo up") == 2


@pytest.mark.parametrize(
    ("where", "error", "said"),
    [
        (
            "stdout",
            OSError(28, "No space left on device"),
            "doctor: cannot write: No space left on device\n",
        ),
        (
            "json",
            OSError(30, "Read-only file system"),
            "doctor: cannot write: Read-only file system\n",
        ),
        ("stdout", BrokenPipeError(32, "Broken pipe"), ""),
    ],
)
def test_what_cannot_be_written_ends_it_with_3(where, error, said, monkeypatch, capfd, tmp_path):
    def fail(*arguments):
        raise error

    monkeypatch.setattr(command, "examine", lambda _: [[Row("a", "b", "c")]])
    monkeypatch.setattr(command, "block" if where == "stdout" else "write_json", fail)
    assert doctor.main(["--json", str(tmp_path / "x.json")]) == 3
    assert capfd.readouterr().err == said


def test_closed_streams_are_no_sockets():
    """Without stdin, stdout and stderr, the next things to be opened would get their numbers."""
    code = (
        "import os, sys; os.closerange(0, 3); sys.stdout = None\n"
        "from helpers.doctor.__main__ import open_streams; open_streams()\n"
        "print('to nowhere'); is_kept = os.get_inheritable(1)\n"
        "sys.exit(os.open(os.devnull, os.O_RDONLY) + 10 * is_kept)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=30, check=False)
    assert done.returncode >= 13


def heed_interrupts():
    """A shell starts what it puts into the background, such as these tests, deaf to them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize(
    ("stop", "topic"),
    [(signal.SIGINT, "network"), (signal.SIGTERM, "GPUs")],  # then torch loads; ranks start
)
def test_a_stop_ends_it_with_one_line(stop, topic, tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    pipes["preexec_fn"] = heed_interrupts
    with subprocess.Popen(COMMAND, **pipes, cwd=ROOT, env=environment) as process:
        said = ""
        while not said.startswith(topic):
            said = process.stdout.readline()
        process.send_signal(stop)
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, "doctor: stopped\n")
    assert list(tmp_path.iterdir()) == []
