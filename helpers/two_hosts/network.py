"""Make hosts and the paced links between them out of network namespaces; take them away again.

One more namespace holds a bridge, as the switch that the hosts are plugged into: nothing is added
to this machine's own network. Each cable is a veth pair with a token bucket (tbf) at both of its
ends, so that a host sends, and receives, at most `rate`.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

INTERFACE = "e0"  # of every host, so that one word names it to gloo
MAX_HOSTS = 8
RATE = re.compile(r"([1-9]\d*(?:\.\d+)?)([kmg])bit")
BITS = {"k": 1e3, "m": 1e6, "g": 1e9}
#: Where root's programs lie, also where PATH does not say so.
PROGRAMS = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])

# Waits for its input to end, which it does however its starter ends, and removes the namespaces
# ($0 is "ip", the arguments their names). "keep" leaves them.
_CLEANER = """
read -r word; [ "$word" = keep ] && exit 0
for name; do
  tries=0
  while [ $tries -lt 100 ] && pids=$("$0" netns pids "$name" 2>/dev/null) && [ -n "$pids" ]; do
    kill -KILL $pids 2>/dev/null; sleep 0.05; tries=$((tries + 1))
  done
  "$0" netns delete "$name" 2>/dev/null
done
exit 0
"""


class CannotMakeHosts(RuntimeError):
    """This machine cannot make hosts; the message says why, and what would help. Local."""


@dataclass(frozen=True)
class Host:
    """One host: its number, its namespace (`ip netns exec NAMESPACE command`), its address."""

    index: int
    namespace: str
    address: str

    def words(self, *command: str) -> list[str]:
        """The words that run `command` on this host. Local."""
        return [_program("ip"), "netns", "exec", self.namespace, *command]


def why_not() -> str | None:
    """Why this machine cannot make hosts, in one line; None where it can. Local.

    The last condition is tried out: a pair of hosts is made and removed.
    """
    try:
        with virtual_hosts():
            return None
    except CannotMakeHosts as error:
        return str(error)


@contextmanager
def virtual_hosts(
    count: int = 2, rate: str = "100mbit", *, keep: bool = False
) -> Iterator[list[Host]]:
    """Yields `count` hosts, each with a link of `rate` bits a second to one switch. Local.

    `rate`: as tc writes it, kbit, mbit or gbit: 100mbit is slow enough for this machine to keep
    up. Each direction has it for itself. The latency is the machine's own: tens of microseconds.
    At the end, and also when this process is killed, what runs in the hosts is killed and they
    are removed; with keep=True they stay, unless they could not be made.
    ValueError: a count outside 2 to 8, a rate of another form. CannotMakeHosts: not Linux, not
    root, no ip or tc, or a kernel or container that refuses.

    Source: ip-netns(8), veth(4), tc-tbf(8). The appendix "Two hosts on one machine" uses it.
    """
    _check(count, rate)
    stem = f"book-{os.getpid()}"
    switch = f"{stem}-switch"
    hosts = [Host(i, f"{stem}-host{i}", f"10.77.0.{i + 1}") for i in range(count)]
    cleaner = _start_cleaner([*(host.namespace for host in hosts), switch])
    last_word = ""
    try:
        _make_switch(switch)
        for host in hosts:
            _plug_in(host, switch, rate)
        last_word = "keep\n" if keep else ""
        yield hosts
    finally:
        cleaner.communicate(last_word)


def _check(count: int, rate: str) -> None:
    if not 2 <= count <= MAX_HOSTS:
        raise ValueError(f"found {count} hosts, expected 2 to {MAX_HOSTS}")
    bytes_per_s(rate)
    if not sys.platform.startswith("linux"):
        raise CannotMakeHosts(f"network namespaces are Linux's, and this is {sys.platform}")
    for name in ("ip", "tc"):
        _program(name)
    if os.geteuid() != 0:
        raise CannotMakeHosts("network namespaces need root: start the command with sudo")


def bytes_per_s(rate: str) -> float:
    """A rate as tc writes it, in bytes a second. Local. ValueError: another form."""
    found = RATE.fullmatch(rate)
    if found is None:
        raise ValueError(f"found rate {rate!r}, expected a form like 100mbit, 500kbit or 1gbit")
    return float(found[1]) * BITS[found[2]] / 8


def _burst_bytes(rate: str) -> int:
    """What a bucket lets through at once: two packets, or at high rates a quarter millisecond's.

    Smaller, and the kernel's timer would pace; larger, and small messages would not feel the rate.
    """
    return max(3_100, round(bytes_per_s(rate) * 0.25e-3))


def _program(name: str) -> str:
    path = shutil.which(name, path=PROGRAMS)
    if path is None:
        raise CannotMakeHosts(
            f"the program {name} is not installed: on Debian and Ubuntu it is in iproute2"
        )
    return path


def _start_cleaner(names: list[str]) -> subprocess.Popen:
    # A session of its own: Ctrl-C in a terminal reaches every process of the starter's.
    return subprocess.Popen(
        ["/bin/sh", "-c", _CLEANER, _program("ip"), *names],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        text=True,
    )


def _make_switch(switch: str) -> None:
    _do("ip netns add", switch)
    _do(f"ip -n {switch} link add name switch type bridge")
    _do(f"ip -n {switch} link set switch up")


def _plug_in(host: Host, switch: str, rate: str) -> None:
    inside, port = host.namespace, f"port{host.index}"
    _do(f"ip netns add {inside}")
    _do(f"ip link add {INTERFACE} netns {inside} type veth peer name {port} netns {switch}")
    _do(f"ip -n {switch} link set {port} master switch up")
    _do(f"ip -n {inside} address add {host.address}/24 dev {INTERFACE}")
    _do(f"ip -n {inside} link set {INTERFACE} up")
    _do(f"ip -n {inside} link set lo up")
    for namespace, device in ((inside, INTERFACE), (switch, port)):
        # `latency`: how long a packet may wait for its tokens before it is dropped.
        bucket = f"tbf rate {rate} burst {_burst_bytes(rate)} latency 200ms"
        _do(f"tc -n {namespace} qdisc add dev {device} root {bucket}")


def _do(line: str, *more: str) -> None:
    """Runs one command of iproute2; CannotMakeHosts with its own words where it refuses."""
    name, *words = line.split()
    done = subprocess.run([_program(name), *words, *more], capture_output=True, text=True)
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise CannotMakeHosts(
            f"{line} {' '.join(more)}".strip() + f": {said} (a container must be started with"
            " --cap-add NET_ADMIN --cap-add SYS_ADMIN; the kernel needs veth, bridge and tbf)"
        )


def namespaces() -> set[str]:
    """The names of this package's namespaces that exist now, whoever made them. Local."""
    folder = Path("/run/netns")
    return {path.name for path in folder.glob("book-*")} if folder.is_dir() else set()
