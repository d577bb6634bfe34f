"""Look at one subject after the other; what hangs or fails becomes a finding."""

import platform
from collections.abc import Callable, Iterator
from typing import Any

from . import all_reduce, book, gpus, host, memory, network, nvidia, torch_build
from .arguments import Command
from .ask import NoAnswer, one_line, within
from .row import BAD, Row

#: For files, sockets and programs that have their own, shorter limits; importing torch from a
#: slow disk may take long.
LIMIT_S, IMPORT_LIMIT_S = 30.0, 90.0


def examine(command: Command) -> Iterator[list[Row]]:
    """Yields the findings, a topic at a time, as they come; no check ends it. Local."""
    found, trouble = _look(nvidia.read, torch_build.TOPIC)
    driver = found or nvidia.Nvidia()
    yield _rows(host.TOPIC, lambda: host.rows(host.read(command.num_ranks)))
    num_gpus = len(driver.names)
    yield _rows(memory.TOPIC, lambda: memory.rows(memory.read(), num_gpus))
    of_network = _rows(network.TOPIC, lambda: network.rows(network.read(command.port), num_gpus))
    yield of_network
    torch, torch_trouble = _look(torch_build.read, torch_build.TOPIC, IMPORT_LIMIT_S)
    yield trouble + torch_trouble + (_torch_rows(torch, driver) if torch else [])
    can_see = bool(torch and (torch.cuda or torch.hip))
    seen, gpu_trouble = _look(gpus.read if can_see else gpus.Gpus, gpus.TOPIC)
    there = driver if can_see else nvidia.Nvidia()  # the topic before says what the build misses
    yield gpu_trouble or _rows(gpus.TOPIC, lambda: gpus.rows(seen, there, command.num_ranks))
    num_seen = len(seen.gpus) if seen else 0
    launch_s = None
    apart = [row for row in of_network if {"loopback", "no_port"} & set(row.advice)]
    if apart:
        yield [all_reduce.row_without_loopback(apart[0].advice)]
    elif torch and "gloo" in torch.backends:
        done = _all_reduces(command.num_ranks, num_seen if "nccl" in torch.backends else 0)
        launch_s = done[0].launch_s or None
        yield [all_reduce.row(one) for one in done]
    yield _rows(book.TOPIC, lambda: book.rows(book.read(), num_seen, launch_s))


def _torch_rows(torch: torch_build.Torch, driver: nvidia.Nvidia) -> list[Row]:
    system, has_amd = platform.system(), torch_build.has_amd_gpu()
    return _rows(torch_build.TOPIC, lambda: torch_build.rows(torch, driver, has_amd, system))


def _all_reduces(num_ranks: int, num_gpus: int) -> list[all_reduce.AllReduce]:
    # On the main thread: the launcher takes a stop of this process on to the ranks.
    found = [all_reduce.measure("gloo", min(num_ranks, all_reduce.MOST_GLOO_RANKS), launches=4)]
    if num_gpus:
        found.append(all_reduce.measure("nccl", num_gpus))
    return found


def _rows(topic: str, check: Callable[[], list[Row]]) -> list[Row]:
    rows, trouble = _look(check, topic, LIMIT_S)
    return rows or trouble


def _look(
    check: Callable[[], Any], topic: str, limit_s: float | None = None
) -> tuple[Any, list[Row]]:
    """What a check returns, or None and a finding that says why it has not.

    `limit_s` None: the check starts programs, whose time it limits itself; it runs on the main
    thread, so that a stop of this process ends them too.
    """
    try:
        return (within(limit_s, check) if limit_s else check()), []
    except NoAnswer as late:
        return None, [Row(topic, "this check", str(late), BAD, ("no_answer",))]
    except Exception as error:  # a doctor that falls over what it looks at helps nobody
        words = one_line(f"{type(error).__name__}: {error}")
        advice = "no_threads" if "can't start new thread" in words else "check_failed"
        return None, [Row(topic, "this check", words, BAD, (advice,))]
