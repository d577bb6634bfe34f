"""Host name, loopback, interfaces and the port that torchrun takes."""

import contextlib
import errno
import ipaddress
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from .ask import NoAnswer, within
from .row import BAD, WARN, Row

TOPIC = "network"
TAKEN, NO_PORT = "taken", "no port is left for a socket"
LOOPBACK = "127.0.0.1"
RESOLVE_LIMIT_S, CONNECT_LIMIT_S = 3.0, 2.0


@dataclass(frozen=True)
class Network:
    """What was read. `addresses`: of the host's own name; `name_trouble`, `loopback_trouble`: why
    there are none, why two sockets of this process did not meet; `port_trouble`: why torchrun could
    not listen; "" where all is well."""

    port: int
    addresses: tuple[str, ...] = (LOOPBACK,)
    name_trouble: str = ""
    loopback_trouble: str = ""
    interfaces: tuple[str, ...] = ("lo",)
    port_trouble: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


def read(port: int, resolve: Callable[[str], Sequence[str]] | None = None) -> Network:
    """Read it from this machine; `resolve` stands in for the system's resolver. Local."""
    addresses, name_trouble = _resolve(resolve or _addresses)
    return Network(
        port=port,
        addresses=addresses,
        name_trouble=name_trouble,
        loopback_trouble=_meet(),
        interfaces=_interfaces(),
        port_trouble=_port_trouble(port),
        environment=dict(os.environ),
    )


def rows(network: Network, num_gpus: int) -> list[Row]:
    """The findings. Local."""
    return [
        _name(network),
        _loopback(network),
        *_chosen(network, num_gpus),
        _port(network),
    ]


def _name(network: Network) -> Row:
    if network.name_trouble:
        return Row(TOPIC, "host's name", network.name_trouble, WARN, ("host_name",))
    # An address would say which machine this is; a record may be shown to others.
    kind = "loopback" if any(map(_is_loopback, network.addresses)) else "an address of its own"
    return Row(TOPIC, "host's name", f"resolves to {kind}")


def _loopback(network: Network) -> Row:
    if network.loopback_trouble:
        advice = "no_port" if network.loopback_trouble == NO_PORT else "loopback"
        return Row(TOPIC, "loopback", network.loopback_trouble, BAD, (advice,))
    return Row(TOPIC, "loopback", "two sockets meet")


def _chosen(network: Network, num_gpus: int) -> list[Row]:
    """The interfaces, and whether what the variables of gloo and NCCL name is among them."""
    there = ", ".join(network.interfaces) or "not known here"
    found = [Row(TOPIC, "interfaces", there)]
    gloo = network.environment.get("GLOO_SOCKET_IFNAME")
    if gloo:
        is_there = all(name in network.interfaces for name in gloo.split(","))
        found.append(_interface("gloo", gloo, is_there, BAD))
    nccl = network.environment.get("NCCL_SOCKET_IFNAME")
    if nccl:
        is_there = any(matches_nccl(nccl, name) for name in network.interfaces)
        found.append(_interface("nccl", nccl, is_there, BAD if num_gpus else WARN))
    return found


def _interface(library: str, setting: str, is_there: bool, verdict: str) -> Row:
    name = f"{library.upper()}_SOCKET_IFNAME"
    if is_there:
        return Row(TOPIC, name, setting)
    return Row(TOPIC, name, f"{setting}, which is no interface", verdict, (f"{library}_interface",))


def matches_nccl(setting: str, interface: str) -> bool:
    """Whether NCCL_SOCKET_IFNAME lets NCCL take an interface. Local.

    Source: NCCL's "Environment Variables": names' beginnings; = for whole names, ^ for none of.
    """
    is_not = setting.startswith("^")
    words = setting.removeprefix("^")
    is_whole = words.startswith("=")
    names = words.removeprefix("=").split(",")
    is_named = interface in names if is_whole else any(map(interface.startswith, names))
    return is_named != is_not


def _port(network: Network) -> Row:
    if not network.port_trouble:
        return Row(TOPIC, "port", f"{network.port} is free")
    if network.port_trouble == TAKEN:
        return Row(TOPIC, "port", f"{network.port} is taken", WARN, ("port",))
    words = f"{network.port} cannot be had: {network.port_trouble}"
    return Row(TOPIC, "port", words, WARN, ("port_denied",))


def _resolve(resolve: Callable[[str], Sequence[str]]) -> tuple[tuple[str, ...], str]:
    try:
        return tuple(within(RESOLVE_LIMIT_S, resolve, socket.gethostname())), ""
    except NoAnswer as late:
        return (), f"resolver: {late}"
    except OSError:
        return (), "does not resolve"


def _addresses(name: str) -> list[str]:
    return [entry[4][0] for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _meet() -> str:
    """Why a socket cannot reach another one over loopback; "" where it can."""
    try:
        with socket.create_server((LOOPBACK, 0)) as server:  # port 0 takes a free one
            server.settimeout(CONNECT_LIMIT_S)
            port = server.getsockname()[1]
            with socket.create_connection((LOOPBACK, port), CONNECT_LIMIT_S):
                server.accept()[0].close()
        return ""
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return NO_PORT
        return f"sockets cannot meet: {error.strerror or error}"


def _interfaces() -> tuple[str, ...]:
    with contextlib.suppress(OSError, AttributeError):  # absent on some systems
        return tuple(name for _, name in socket.if_nameindex())
    return ()


def _port_trouble(port: int) -> str:
    """Why torchrun's store could not listen on the port, on all interfaces as it does; or ""."""
    with socket.socket() as listening:
        if sys.platform != "win32":  # as for a server: a port just left is free
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("", port))
            listening.listen()
        except OSError as error:
            return TAKEN if error.errno == errno.EADDRINUSE else error.strerror or str(error)
    return ""
