"""Loopback, host name, ports, and the interfaces that backends are told to use."""

import os
import queue
import socket
from collections.abc import Callable, Mapping, Sequence
from threading import Thread

from helpers.doctor.row import BAD, NOTE, Row

#: torchrun's own port, where a script is started without --standalone.
MASTER_PORT = 29500
RESOLVE_TIMEOUT_S = 2.0


def network_rows(
    environment: Mapping[str, str] = os.environ,
    interfaces: Sequence[str] | None = None,
    resolve: Callable[[str], object] = socket.gethostbyname,
    port: int = MASTER_PORT,
) -> list[Row]:
    """Return a row each for loopback, host name and port, and one for each interface named."""
    present = [name for _, name in socket.if_nameindex()] if interfaces is None else interfaces
    return [
        _row_of_loopback(),
        _row_of_host_name(resolve),
        _row_of_port(port),
        *_rows_of_interfaces(environment, present),
    ]


def _row_of_loopback() -> Row:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=2).close()
    except OSError as error:
        advice = "ranks meet on 127.0.0.1: bring the interface up (ip link set lo up)"
        return Row("loopback", str(error), BAD, advice)
    return Row("loopback", "127.0.0.1 answers")


def _row_of_host_name(resolve: Callable[[str], object]) -> Row:
    name = socket.gethostname()
    answers: queue.Queue[object] = queue.Queue()
    # The resolver may hang; a daemon holds up neither the doctor nor its end.
    Thread(target=lambda: answers.put(_answer(resolve, name)), daemon=True).start()
    try:
        answer = answers.get(timeout=RESOLVE_TIMEOUT_S)
        if not isinstance(answer, OSError):
            return Row("host name", f"resolves to {answer}")
        found = "does not resolve"
    except queue.Empty:
        found = "takes long to resolve"
    advice = (
        "torchrun --standalone hangs on this; the book's launcher does not. Name it in /etc/hosts, "
        "or say torchrun --local-addr 127.0.0.1"
    )
    return Row("host name", found, NOTE, advice)


def _answer(resolve: Callable[[str], object], name: str) -> object:
    try:
        return resolve(name)
    except OSError as error:
        return error


def _row_of_port(port: int) -> Row:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return Row("port", f"{port} is free")
    except OSError as error:
        advice = (
            "plain torchrun without --standalone wants it: is another job running, or one left "
            "behind? --standalone and the book's launcher take a free one"
        )
        return Row("port", f"{port}: {error.strerror}", NOTE, advice)


def _rows_of_interfaces(environment: Mapping[str, str], present: Sequence[str]) -> list[Row]:
    rows = []
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        # NCCL takes prefixes, a list, and a leading ^ or =
        names = [name.lstrip("^=") for name in environment.get(variable, "").split(",") if name]
        missing = [name for name in names if not any(each.startswith(name) for each in present)]
        if missing:
            advice = f"expected some of {', '.join(present)}; `unset {variable}` lets it choose"
            rows.append(Row(variable, f"no interface {', '.join(missing)}", BAD, advice))
        elif names:
            rows.append(Row(variable, ", ".join(names)))
    return rows
