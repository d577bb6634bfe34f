"""helpers.doctor: each line of advice for the fault that it is for, and none on a sound machine."""

import dataclasses
import json
import socket
import time

import pytest

from helpers.doctor import all_reduce, command
from helpers.doctor.all_reduce import all_reduce_row, all_reduce_rows
from helpers.doctor.book import book_rows
from helpers.doctor.gpus import Gpu, gpu_rows
from helpers.doctor.machine import Machine, machine_rows, read_machine
from helpers.doctor.network import network_rows
from helpers.doctor.row import BAD, NOTE, OK, Row
from helpers.doctor.table import table
from helpers.doctor.torch_build import Build, ask, build_rows, read_build

GB = 10**9
SOUND = Machine(8, None, 64 * GB, None, 32 * GB, None, None)


def verdicts(rows):
    return {row.subject: row.verdict for row in rows}


def only(rows, subject):
    (row,) = [row for row in rows if row.subject == subject]
    return row


# -- the machine -------------------------------------------------------------------------------


def test_a_sound_machine_gets_no_advice():
    rows = machine_rows(SOUND, num_gpus=8)
    assert set(verdicts(rows).values()) == {OK}
    assert not any(row.advice for row in rows)


@pytest.mark.parametrize(
    ("fault", "subject", "says"),
    [
        ({"core_limit": 1.5}, "cores", "OMP_NUM_THREADS=1"),
        ({"omp_threads": "64"}, "threads", "unset OMP_NUM_THREADS"),
        ({"omp_threads": "many"}, "threads", "expected a number from 1 to 8"),
        ({"memory_limit_bytes": GB}, "memory", "docker run --memory"),
        ({"memory_bytes": GB}, "memory", "close other programs"),
        ({"shm_bytes": 64 * 10**6}, "shared memory", "--shm-size=8g"),
        ({"memlock_bytes": 65_536}, "locked memory", "memlock=-1"),
    ],
)
def test_each_limit_has_its_advice(fault, subject, says):
    rows = machine_rows(dataclasses.replace(SOUND, **fault), num_gpus=2)
    assert says in only(rows, subject).advice
    assert only(rows, subject).verdict == NOTE
    assert sum(row.verdict != OK for row in rows) == 1


def test_locked_memory_matters_with_gpus_only():
    rows = machine_rows(dataclasses.replace(SOUND, memlock_bytes=65_536), num_gpus=0)
    assert only(rows, "locked memory").verdict == OK


@pytest.mark.parametrize(
    ("files", "cores", "memory"),
    [
        ({"cpu.max": "150000 100000", "memory.max": "2000000000"}, 1.5, 2 * GB),
        ({"cpu.max": "max 100000", "memory.max": "max"}, None, None),
        (
            {
                "cpu/cpu.cfs_quota_us": "50000",
                "cpu/cpu.cfs_period_us": "100000",
                "memory/memory.limit_in_bytes": "1000000000",
            },
            0.5,
            GB,
        ),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None, None),
        ({}, None, None),
    ],
    ids=["cgroup 2", "no limits", "cgroup 1", "cgroup 1 without limits", "none"],
)
def test_limits_of_containers_are_read(tmp_path, files, cores, memory):
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    2000000 kB\n")
    found = read_machine(tmp_path, {"OMP_NUM_THREADS": "2"})
    assert (found.core_limit, found.memory_limit_bytes) == (cores, memory)
    assert (found.memory_bytes, found.shm_bytes) == (2_048_000_000, None)
    assert found.omp_threads == "2"


# -- torch -------------------------------------------------------------------------------------

CPU_ONLY = Build("2.13.0+cpu", None, None, None, 0, True)
WITH_CUDA = Build("2.13.0+cu128", "12.8", None, "12.4", 2, True)


@pytest.mark.parametrize("build", [CPU_ONLY, WITH_CUDA])
def test_a_build_that_fits_gets_no_advice(build):
    assert {row.verdict for row in build_rows(build)} == {OK}


@pytest.mark.parametrize(
    ("build", "fault", "verdict", "says"),
    [
        (CPU_ONLY, {"driver_cuda": "12.4"}, BAD, "a build for CUDA 12.4 or older"),
        (WITH_CUDA, {"driver_cuda": "11.8"}, BAD, "the driver is too old"),
        (WITH_CUDA, {"num_gpus": 0}, BAD, "CUDA_VISIBLE_DEVICES"),
        (WITH_CUDA, {"num_gpus": 0, "driver_cuda": None}, NOTE, "CPU only is several GB smaller"),
    ],
)
def test_a_build_that_does_not_fit(build, fault, verdict, says):
    row, _ = build_rows(dataclasses.replace(build, **fault))
    assert row.verdict == verdict
    assert says in row.advice


def test_triton_is_missed():
    _, row = build_rows(dataclasses.replace(CPU_ONLY, has_triton=False))
    assert "make triton" in row.advice


def test_the_driver_is_asked_and_may_be_missing_or_hang():
    assert read_build("| Driver Version: 550.1  CUDA Version: 12.4 |").driver_cuda == "12.4"
    assert read_build("").driver_cuda is None
    assert ask("no-such-program") == ""
    begin = time.perf_counter()
    assert ask("sleep", "60", timeout_s=0.2) == ""
    assert time.perf_counter() - begin < 30


# -- GPUs --------------------------------------------------------------------------------------

NVLINK = "        GPU0    GPU1\nGPU0     X      NV18\nGPU1    NV18     X\n\nLegend: SYS = ...\n"


def gpus(*speeds, uuids=None):
    uuids = uuids or [f"GPU-{index}" for index in range(len(speeds))]
    return [Gpu("H100", 80 * GB, u, speed) for u, speed in zip(uuids, speeds, strict=True)]


def test_equal_gpus_on_nvlink_get_no_advice():
    rows = gpu_rows(gpus(600, 640), NVLINK)
    assert {row.verdict for row in rows} == {OK}
    assert only(rows, "links").found == "NV18"
    assert [row.found for row in gpu_rows([])] == ["none: everything runs on the CPU, over gloo"]


@pytest.mark.parametrize(
    ("found", "topology", "subject", "verdict", "says"),
    [
        (gpus(600, 640, uuids=["a", "a"]), NVLINK, "GPUs seen twice", BAD, "Duplicate GPU"),
        (gpus(600, 300), NVLINK, "matrix multiply", NOTE, "GPU 1 is slower"),
        (gpus(1, 1), NVLINK.replace("NV18", "PHB"), "links", NOTE, "NCCL_P2P_DISABLE=1"),
    ],
)
def test_each_fault_of_gpus_has_its_advice(found, topology, subject, verdict, says):
    row = only(gpu_rows(found, topology), subject)
    assert row.verdict == verdict
    assert says in row.advice


def test_links_that_nobody_tells_are_unknown():
    assert "unknown" in only(gpu_rows(gpus(1, 1), ""), "links").found


# -- the network -------------------------------------------------------------------------------


def test_a_sound_network_gets_no_advice():
    rows = network_rows({"GLOO_SOCKET_IFNAME": "lo"}, ["lo", "eth0"], lambda _: "127.0.0.1", 0)
    assert {row.verdict for row in rows} == {OK}


def unknown(*_, **options):
    raise OSError("Name or service not known")


@pytest.mark.parametrize(
    ("resolve", "found"),
    [(unknown, "does not resolve"), (lambda _: time.sleep(5), "takes long to resolve")],
)
def test_a_host_name_without_an_address(monkeypatch, resolve, found):
    monkeypatch.setattr("helpers.doctor.network.RESOLVE_TIMEOUT_S", 0.05)
    row = only(network_rows({}, ["lo"], resolve, 0), "host name")
    assert row.found == found
    assert "--local-addr 127.0.0.1" in row.advice


def test_an_occupied_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        row = only(network_rows({}, ["lo"], lambda _: "", server.getsockname()[1]), "port")
    assert row.verdict == NOTE
    assert "--standalone" in row.advice


def test_loopback_that_is_down(monkeypatch):
    monkeypatch.setattr(socket, "create_connection", unknown)
    row = only(network_rows({}, ["lo"], lambda _: "", 0), "loopback")
    assert row.verdict == BAD
    assert "ip link set lo up" in row.advice


@pytest.mark.parametrize(
    ("named", "verdict"), [("eth", OK), ("^lo", OK), ("wlan0", BAD), ("eth0,wlan0", BAD)]
)
def test_interfaces_are_there(named, verdict):
    row = network_rows({"NCCL_SOCKET_IFNAME": named}, ["lo", "eth0"], lambda _: "", 0)[-1]
    assert (row.subject, row.verdict) == ("NCCL_SOCKET_IFNAME", verdict)
    assert ("unset NCCL_SOCKET_IFNAME" in row.advice) == (verdict == BAD)


# -- all-reduce --------------------------------------------------------------------------------


def waits(_):
    time.sleep(60)


def adds_wrongly(_):
    return 4.0


def test_all_reduce_finds_the_sum():
    (row,) = all_reduce_rows(num_gpus=0)
    assert (row.subject, row.verdict) == ("all-reduce, gloo", OK)


@pytest.mark.parametrize(
    ("backend", "work", "timeout_s", "found", "says"),
    [
        ("nccl", waits, 1, "not done after 1 s", "NCCL_DEBUG=INFO"),
        ("gloo", adds_wrongly, 20, "found [4.0, 4.0], expected [3.0, 3.0]", "GLOO_SOCKET_IFNAME"),
        ("nccl", all_reduce._sum_of_ranks, 20, "RuntimeError: nccl needs a GPU", "the driver"),
    ],
)
def test_an_all_reduce_that_hangs_or_is_wrong(backend, work, timeout_s, found, says):
    row = all_reduce_row(backend, 2, timeout_s, work)
    assert row.verdict == BAD
    assert row.found.startswith(found)
    assert says in row.advice


def test_an_interface_that_is_not_there_end_to_end(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such-interface")
    (row,) = all_reduce_rows(num_gpus=0)
    assert row.verdict == BAD
    assert "GLOO_SOCKET_IFNAME" in row.advice


# -- the book, the command ---------------------------------------------------------------------


def test_the_book_is_found_with_its_backends_and_a_rough_time(tmp_path):
    chapters, took = book_rows(0)
    assert chapters.verdict == OK
    assert "over gloo" in chapters.found
    assert "about" in took.found
    assert "NCCL" in book_rows(4, seconds=1.0)[0].found
    (row,) = book_rows(0, tmp_path)
    assert "where `make book` works" in row.advice
    fast, slow = (book_rows(0, seconds=s)[1].found for s in (0.5, 5.0))
    assert fast != slow


def test_the_table_counts_and_the_exit_code_tells(monkeypatch, capsys, tmp_path):
    rows = [Row("cores", "2"), Row("port", "taken", NOTE, "wait"), Row("sum", "4", BAD, "look")]
    assert table(rows).endswith("1 bad, 1 to note, of 3")
    assert "-> look" in table(rows)
    monkeypatch.setattr(command, "examine", lambda: rows)
    assert command.main([]) == 1
    capsys.readouterr()
    assert command.main(["--json", "-"]) == 1
    assert [row["verdict"] for row in json.loads(capsys.readouterr().out)["rows"]] == [
        OK,
        NOTE,
        BAD,
    ]
    monkeypatch.setattr(command, "examine", lambda: rows[:2])
    assert command.main(["--json", str(tmp_path / "rows.json")]) == 0
    assert len(json.loads((tmp_path / "rows.json").read_text())["rows"]) == 2


def test_bad_words_and_an_interrupt(monkeypatch, tmp_path, capsys):
    with pytest.raises(SystemExit) as left:
        command.main(["--json", str(tmp_path / "missing" / "rows.json")])
    assert left.value.code == 2

    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "examine", interrupted)
    assert command.main([]) == 130


def test_all_of_it_on_this_machine(capsys):
    assert command.main([]) == 0
    assert "all-reduce, gloo" in capsys.readouterr().out
