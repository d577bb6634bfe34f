"""For each line of the doctor's advice a fault: readings like a sound machine's, but for one.

`FAULTS` maps the name of the advice to what returns the rows; `SOUND` are rows without a fault.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from helpers.doctor import all_reduce, book, gpus, host, memory, network, torch_build
from helpers.doctor.all_reduce import AllReduce
from helpers.doctor.gpus import Gpu, Gpus
from helpers.doctor.host import Host
from helpers.doctor.memory import GIB, MIB, Memory
from helpers.doctor.network import Network
from helpers.doctor.nvidia import Nvidia
from helpers.doctor.row import Row
from helpers.doctor.torch_build import Torch

Rows = Callable[[], Sequence[Row]]

HOST = Host(num_ranks=2, num_cores=4, environment={"OMP_NUM_THREADS": "2"})
MEMORY = Memory(16 * GIB, 12 * GIB, None, None, 8 * GIB, 8 * GIB, 8 * MIB)
NETWORK = Network(29500, interfaces=("lo", "eth0", "docker0"))
TORCH = Torch("2.13.0+cu130", "13.0", "", ("gloo", "nccl"))
NVIDIA = Nvidia("580.65.06", ("NVIDIA A", "NVIDIA A"), "", (("NV4", 1),))
GPUS = Gpus((Gpu("NVIDIA A", 80, "u0", 1.0, (1,)), Gpu("NVIDIA A", 80, "u1", 1.1, (0,))))
CHAPTER = book.Chapter("01 One", 20, "CPU; GPUs with no cell changed", True)
SUMS = tuple(3.0 * index for index in range(all_reduce.LENGTH))
SUMMED = AllReduce("gloo", 2, (SUMS, SUMS), 1e-3, 0.2)


def of_host(**fields) -> Rows:
    return lambda: host.rows(replace(HOST, **fields))


def of_memory(num_gpus: int = 0, **fields) -> Rows:
    return lambda: memory.rows(replace(MEMORY, **fields), num_gpus)


def of_network(num_gpus: int = 0, **fields) -> Rows:
    return lambda: network.rows(replace(NETWORK, **fields), num_gpus)


def of_torch(driver: Nvidia = NVIDIA, has_amd: bool = False, **fields) -> Rows:
    return lambda: torch_build.rows(replace(TORCH, **fields), driver, has_amd, "Linux")


def of_gpus(num_ranks: int = 2, driver: Nvidia = NVIDIA, **fields) -> Rows:
    return lambda: gpus.rows(replace(GPUS, **fields), driver, num_ranks)


def of_sum(**fields) -> Rows:
    return lambda: [all_reduce.row(replace(SUMMED, **fields))]


def late(backend: str) -> Rows:
    return of_sum(backend=backend, trouble="not finished after 20 s", is_timeout=True)


def slower(ms: float) -> tuple[Gpu, ...]:
    return GPUS.gpus[0], replace(GPUS.gpus[1], matmul_ms=ms)


def apart() -> tuple[Gpu, ...]:
    return GPUS.gpus[0], replace(GPUS.gpus[1], reaches=())


def spoilt(rank: int, index: int) -> tuple[tuple[float, ...], ...]:
    sums = [list(SUMS), list(SUMS)]
    sums[rank][index] += 1
    return tuple(map(tuple, sums))


def check_that(fails: Callable[[], object], limit_s: float) -> Rows:
    """The rows of a check that hangs or raises, as the doctor itself would show them."""
    from helpers.doctor.examine import _look

    return lambda: _look(fails, "a topic", limit_s)[1]


def fail() -> None:
    raise KeyError("unheard of")


def fail_to_start() -> None:
    raise RuntimeError("can't start new thread")


#: Over PCIe, across a bridge of the host.
PCIE = replace(NVIDIA, links=(("PHB", 1),))

SOUND: dict[str, Rows] = {
    "host": of_host(),
    "host without OMP_NUM_THREADS": of_host(environment={}),
    "one thread each, on fewer cores than ranks": of_host(
        num_ranks=8, environment={"OMP_NUM_THREADS": "1"}
    ),
    "a quota above the cores": of_host(quota_cpus=8.0),
    "memory": of_memory(num_gpus=2),
    "a container's ample limit": of_memory(limit_bytes=8 * GIB, limit_used_bytes=GIB),
    "InfiniBand without GPUs": of_memory(has_infiniband=True),
    "InfiniBand without a limit": of_memory(2, has_infiniband=True, memlock_bytes=None),
    "a Mac's memory": of_memory(is_linux=False, shm_bytes=None, available_bytes=None),
    "network": of_network(num_gpus=2),
    "gloo over lo": of_network(environment={"GLOO_SOCKET_IFNAME": "lo"}),
    "NCCL over all but": of_network(2, environment={"NCCL_SOCKET_IFNAME": "^docker,lo"}),
    "NCCL over a beginning": of_network(2, environment={"NCCL_SOCKET_IFNAME": "eth"}),
    "torch for CUDA": of_torch(),
    "torch for CUDA 12 on a newer driver": of_torch(cuda="12.6"),
    "torch for the CPU, and no GPU": of_torch(Nvidia(), cuda="", backends=("gloo",)),
    "torch for ROCm": of_torch(Nvidia(), True, cuda="", hip="6.4"),
    "GPUs": of_gpus(),
    "one rank": of_gpus(num_ranks=1),
    "an IOMMU beside NVLink": of_gpus(has_iommu=True),
    "GPUs chosen": of_gpus(environment={"CUDA_VISIBLE_DEVICES": "0,1"}),
    "no GPU": lambda: gpus.rows(Gpus(), Nvidia(), 2),
    "sums": of_sum(),
    "sums with NCCL": of_sum(backend="nccl"),
    "the book": lambda: book.rows([CHAPTER], 0, 0.2),
}

FAULTS: dict[str, Rows] = {
    "windows": of_host(system="Windows"),
    "old_python": of_host(python=(3, 10, 4)),
    "one_core": of_host(num_cores=1, environment={}),
    "core_quota": of_host(quota_cpus=1.5),
    "omp_no_number": of_host(environment={"OMP_NUM_THREADS": "\u0663"}),  # a 3, but not for C
    "omp_too_many": of_host(environment={"OMP_NUM_THREADS": "3"}),
    "few_files": of_host(open_files=64),
    "torchrun_variables": of_host(environment={"RANK": "0"}),
    "within_torchrun": of_host(environment={"WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "1"}),
    "little_memory": of_memory(available_bytes=GIB),
    "memory_limit": of_memory(limit_bytes=2 * GIB, limit_used_bytes=GIB),
    "shm": of_memory(shm_bytes=64 * MIB, shm_free_bytes=64 * MIB),
    "shm_closed": of_memory(is_shm_writable=False),
    "no_temporary": of_memory(temporary_trouble="No space left on device"),
    "memlock": of_memory(2, has_infiniband=True),
    "host_name": of_network(addresses=(), name_trouble="does not resolve"),
    "loopback": of_network(loopback_trouble="sockets cannot meet"),
    "gloo_interface": of_network(environment={"GLOO_SOCKET_IFNAME": "eth7"}),
    "nccl_interface": of_network(2, environment={"NCCL_SOCKET_IFNAME": "=eth"}),
    "port": of_network(port_trouble=network.TAKEN),
    "port_denied": of_network(port_trouble="Permission denied"),
    "no_port": of_network(loopback_trouble=network.NO_PORT),
    "no_torch": of_torch(trouble="No module named 'torch'"),
    "torch_version": of_torch(version="2.3.1"),
    "no_distributed": of_torch(backends=()),
    "no_nccl": of_torch(backends=("gloo",)),
    "cpu_build": of_torch(cuda="", backends=("gloo",)),
    "driver_old": of_torch(replace(NVIDIA, driver="570.124.06")),
    "driver_silent": of_torch(Nvidia("580.65.06", (), "Driver/library version mismatch")),
    "gpus_silent": of_gpus(gpus=(), trouble="CUDA error: out of memory"),
    "gpus_hidden": of_gpus(gpus=GPUS.gpus[:1], num_ranks=1),
    "duplicate_gpu": of_gpus(num_ranks=3),
    "visible_twice": of_gpus(environment={"CUDA_VISIBLE_DEVICES": "0,0"}),
    "slow_gpu": of_gpus(gpus=slower(1.3)),
    "no_p2p": of_gpus(gpus=apart()),
    "iommu": of_gpus(driver=PCIE, has_iommu=True),
    "nccl_debug": late("nccl"),
    "p2p_off": late("nccl"),
    "nccl_interfaces": late("nccl"),
    "gloo_interfaces": late("gloo"),
    "busy": late("gloo"),
    "wrong_sum": of_sum(sums=spoilt(1, 7)),
    "all_reduce_failed": of_sum(trouble="rank 1: RuntimeError: ..."),
    "no_answer": check_that(threading.Event().wait, 0.05),
    "check_failed": check_that(fail, 5.0),
    "no_threads": check_that(fail_to_start, 5.0),
    "no_book": lambda: book.rows([], 0, 0.2),
}

#: Those that keep the book from running here; all others warn.
BAD_FAULTS = {
    *("windows", "old_python", "omp_no_number", "loopback", "gloo_interface", "nccl_interface"),
    *("no_torch", "no_distributed", "driver_old", "gpus_silent", "visible_twice", "nccl_debug"),
    *("p2p_off", "nccl_interfaces", "gloo_interfaces", "busy", "wrong_sum", "all_reduce_failed"),
    *("no_answer", "check_failed", "shm_closed", "no_temporary", "no_threads", "no_port"),
}
