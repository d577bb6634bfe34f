"""Run a command on every host at once, and show what each says."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from helpers.two_hosts.network import INTERFACE, Host

PORT = 29500  # of the rendezvous on host 0; the namespace is new, so every port is free
GRACE_S = 5.0  # when one host has failed, the others end by themselves: torch tells them


class HostFailed(RuntimeError):
    """A host's command failed or ran past its time; `code` is its exit code. Local."""

    def __init__(self, message: str, code: int):
        super().__init__(message)
        self.code = code


def torchrun_words(
    host: Host, hosts: Sequence[Host], nproc_per_node: int, script: Sequence[str]
) -> list[str]:
    """The words of the torchrun that starts this host's ranks of one common job. Local.

    They are what one types on real hosts; host 0 keeps the store of the rendezvous.
    """
    return [
        *(sys.executable, "-m", "torch.distributed.run"),  # torchrun, whatever PATH says
        f"--nnodes={len(hosts)}",
        f"--nproc-per-node={nproc_per_node}",
        f"--node-rank={host.index}",
        f"--master-addr={hosts[0].address}",
        f"--master-port={PORT}",
        *script,
    ]


def run_on_hosts(
    hosts: Sequence[Host],
    words: Callable[[Host], Sequence[str]],
    *,
    timeout_s: float = 120.0,
    write: Callable[[str], Any] = print,
) -> None:
    """Runs `words(host)` on every host, all at once, until all have ended. Local.

    `write` gets each line that a host prints, with the host's number before it. HOST_INDEX tells
    a command where it runs, GLOO_SOCKET_IFNAME tells gloo which interface leads to the others.
    HostFailed: a command that ended with another code than 0, or after `timeout_s` (the default
    is that of the launcher); the other hosts' commands are stopped.
    """
    running: list[subprocess.Popen] = []
    readers: list[threading.Thread] = []
    try:
        for host in hosts:
            running.append(_start(host, words(host), len(hosts)))
            reader = threading.Thread(
                target=_read, args=(running[-1], host.index, write), daemon=True
            )
            reader.start()
            readers.append(reader)
        _wait(running, timeout_s)
    finally:
        _stop(running)
        for reader in readers:
            reader.join(timeout=0.3)  # one whose pipe a killed torchrun's rank still holds


def _start(host: Host, words: Sequence[str], num_hosts: int) -> subprocess.Popen:
    threads = str(max(1, (os.cpu_count() or 1) // num_hosts))
    environment = {
        # The hosts share this machine's cores, and gloo's and c10d's warnings of names that no
        # server knows here would come twice for each connection. What is set already stays.
        "OMP_NUM_THREADS": threads,
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        **os.environ,
        "GLOO_SOCKET_IFNAME": INTERFACE,
        "HOST_INDEX": str(host.index),
        "PYTHONUNBUFFERED": "1",
    }
    return subprocess.Popen(
        host.words(*words),
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )


def _read(process: subprocess.Popen, index: int, write: Callable[[str], Any]) -> None:
    for line in process.stdout:
        write(f"[host {index}] {line.rstrip()}")


def _wait(running: list[subprocess.Popen], timeout_s: float) -> None:
    begin_s = time.monotonic()
    first, failed_s = None, float("inf")
    while still := [i for i, process in enumerate(running) if process.poll() is None]:
        now_s = time.monotonic()
        if first is None:
            first = _failed(running)
            failed_s = failed_s if first is None else now_s
        if now_s - failed_s > GRACE_S:
            break
        if now_s - begin_s > timeout_s:
            named = ", ".join(map(str, still))
            raise HostFailed(f"after {timeout_s:g} s still running on host {named}", 124)
        time.sleep(0.02)
    first = _failed(running) if first is None else first
    if first is not None:
        code = running[first].returncode
        raise HostFailed(_how_it_ended(first, code), abs(code))


def _failed(running: list[subprocess.Popen]) -> int | None:
    return next((i for i, process in enumerate(running) if process.returncode), None)


def _how_it_ended(index: int, code: int) -> str:
    if code < 0:
        return f"host {index}: killed by {signal.Signals(-code).name}"
    return f"host {index}: exit code {code}"


def _stop(running: list[subprocess.Popen]) -> None:
    """Ends what still runs: torchrun passes SIGTERM on to its ranks."""
    for process in running:
        if process.poll() is None:
            process.terminate()
    end_s = time.monotonic() + GRACE_S
    for process in running:
        try:
            process.wait(timeout=max(0.0, end_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()  # its ranks are killed when the host is removed
            process.wait()
