"""System, cores and threads."""

import os
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from . import cgroup
from .ask import limit_of, one_line
from .row import BAD, OK, WARN, Row

TOPIC = "machine"
LEAST_PYTHON = (3, 11)
#: macOS gives 256, Linux 1024; a launcher with four ranks holds some 60.
LEAST_OPEN_FILES = 128
#: As in helpers.process_group, which needs torch; a test holds them equal.
TORCHRUN_VARIABLES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT"),
)


@dataclass(frozen=True)
class Host:
    """What was read. `num_cores`: those that this process may run on; `quota_cpus`: a container's
    share of them, None for all; `open_files`: the most that a process may hold, None for no
    limit; `environment`: the variables."""

    num_ranks: int
    system: str = "Linux"
    release: str = ""
    python: tuple[int, ...] = LEAST_PYTHON
    num_cores: int = 2
    quota_cpus: float | None = None
    open_files: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


def read(num_ranks: int) -> Host:
    """Read it from this machine. Local."""
    has_affinity = hasattr(os, "sched_getaffinity")
    return Host(
        num_ranks=num_ranks,
        system=platform.system(),
        release=platform.release(),
        python=sys.version_info[:3],
        num_cores=len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1,
        quota_cpus=cgroup.read().cpus,
        open_files=limit_of("RLIMIT_NOFILE"),
        environment=dict(os.environ),
    )


def rows(host: Host) -> list[Row]:
    """The findings. Local."""
    all_checks = (_system, _python, _cores, _open_files, _threads, _variables)
    return [check(host) for check in all_checks]


def _system(host: Host) -> Row:
    found = f"{host.system} {host.release}".strip()
    if host.system == "Windows":
        return Row(TOPIC, "system", found, BAD, ("windows",))
    return Row(TOPIC, "system", found)


def _python(host: Host) -> Row:
    found = ".".join(map(str, host.python))
    if host.python[:2] < LEAST_PYTHON:
        return Row(TOPIC, "Python", found, BAD, ("old_python",))
    return Row(TOPIC, "Python", found)


def _cores(host: Host) -> Row:
    quota = host.quota_cpus
    if quota is not None and quota < host.num_cores:
        found = f"{host.num_cores}, of which the container may use {quota:g}"
        return Row(TOPIC, "cores", found, WARN, ("core_quota",))
    if host.num_cores < 2:
        return Row(TOPIC, "cores", "1", WARN, ("one_core",))
    return Row(TOPIC, "cores", str(host.num_cores))


def _open_files(host: Host) -> Row:
    most = host.open_files
    if most is None:
        return Row(TOPIC, "open files", "no limit")
    if most < LEAST_OPEN_FILES:
        return Row(TOPIC, "open files", f"at most {most}", WARN, ("few_files",))
    return Row(TOPIC, "open files", f"at most {most}")


def _threads(host: Host) -> Row:
    setting = host.environment.get("OMP_NUM_THREADS")
    ranks = _ranks(host.num_ranks)
    if setting is None:
        each = max(1, host.num_cores // host.num_ranks)
        return Row(TOPIC, "OMP_NUM_THREADS", f"unset; the launcher gives {ranks} {each} each")
    first = setting.split(",")[0].strip()  # one number for each level of nesting
    if not re.fullmatch("[0-9]{1,6}", first) or int(first) < 1:
        return Row(TOPIC, "OMP_NUM_THREADS", one_line(repr(setting)), BAD, ("omp_no_number",))
    found = f"{first}, with {ranks} on {host.num_cores} cores"
    is_too_many = int(first) > 1 and int(first) * host.num_ranks > host.num_cores
    advice = ("omp_too_many",) if is_too_many else ()
    return Row(TOPIC, "OMP_NUM_THREADS", found, WARN if advice else OK, advice)


def _variables(host: Host) -> Row:
    left = [name for name in TORCHRUN_VARIABLES if host.environment.get(name)]
    if left and "TORCHELASTIC_RUN_ID" in host.environment:
        found = f"set by torchrun, which starts this {host.environment.get('WORLD_SIZE')} times"
        return Row(TOPIC, "torchrun's variables", found, WARN, ("within_torchrun",))
    if left:
        found = f"{', '.join(left)} set outside torchrun"
        return Row(TOPIC, "torchrun's variables", found, WARN, ("torchrun_variables",))
    return Row(TOPIC, "torchrun's variables", "unset")


def _ranks(number: int) -> str:
    return "1 rank" if number == 1 else f"{number} ranks"
