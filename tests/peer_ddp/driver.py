"""Run torch's tests of DistributedDataParallel one by one, each on ranks forked from here.

Imported inside `settings.settings`, since torch's module of tests reads the environment.
"""

import contextlib
import gc
import inspect
import io
import logging
import os
import re
import time
import unittest
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch.testing._internal import common_distributed

from peer_ddp import masquerade, substitute

masquerade.keep_all_tests()
from torch.testing._internal.distributed import distributed_test  # noqa: E402

MENTIONS = re.compile(
    r"DistributedDataParallel|_test_ddp|_test_DistributedDataParallel|_run_uneven|self\._ddp"
)
ERROR = re.compile(r"\s*(\w+\.)*\w*(Error|Exception|Warning)\b")


@dataclass(frozen=True)
class Outcome:
    """How one test ended: "passed", "failed" or "skipped", with the reason of the last two."""

    name: str
    status: str
    reason: str
    seconds: float
    traceback: str = ""


class TorchTests(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    """torch's tests for the gloo backend, on the CPU, with `model_class` as their class."""

    model_class: type = substitute.STOCK

    def setUp(self):
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)

    @classmethod
    def _run(cls, rank, test_name, file_name, pipe, **kwargs):
        torch.set_num_threads(1)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        # compiled code of one rank each: ranks that write one file read it before it is whole
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{os.environ['TEMP_DIR']}/compiled_{rank}"
        substitute.install(cls.model_class, distributed_test)
        masquerade.hide_the_missing_gpus()
        with masquerade.CpuForCuda():
            super()._run(rank, test_name, file_name, pipe, **kwargs)


def candidates() -> list[str]:
    """Names of the tests whose name or source says that they are about the class."""
    found = []
    for name in sorted(dir(TorchTests)):
        if name.startswith("test_"):
            source = inspect.getsource(inspect.unwrap(getattr(TorchTests, name)))
            if MENTIONS.search(source) or re.search("(?i)ddp|uneven", name):
                found.append(name)
    return found


def run(model_class: type, names: Iterable[str], timeout_s: float) -> Iterator[Outcome]:
    """Run the tests of these names in turn, and yield each `Outcome` as it is known.

    A name that this torch does not have is a failure.
    """
    TorchTests.model_class = model_class
    common_distributed.TIMEOUT_OVERRIDE.clear()  # `timeout_s` holds for all
    common_distributed.time = _Impatient()
    logging.disable(logging.CRITICAL)
    gc.collect()
    gc.freeze()  # what ranks do not touch they share with this process
    for name in names:
        if hasattr(TorchTests, name):
            yield _run_one(name)
        else:
            yield Outcome(name, "failed", f"not in torch {torch.__version__}", 0.0)


class _Impatient:
    """The module time, with shorter sleeps: ranks are looked after ten times a second otherwise."""

    def __getattr__(self, name: str):
        return getattr(time, name)

    @staticmethod
    def sleep(seconds: float) -> None:
        time.sleep(min(seconds, 0.01))


def _run_one(name: str) -> Outcome:
    begin = time.perf_counter()
    result = unittest.TestResult()
    with contextlib.redirect_stdout(io.StringIO()):
        TorchTests(name).run(result)
    seconds = round(time.perf_counter() - begin, 2)
    problems = result.failures + result.errors
    if problems:
        return Outcome(name, "failed", _reason(problems[0][1]), seconds, problems[0][1])
    if result.skipped:
        return Outcome(name, "skipped", result.skipped[0][1], seconds)
    return Outcome(name, "passed", "", seconds)


def _reason(traceback: str) -> str:
    """The line of a rank's error, rather than that of the process that waited for it."""
    lines = [line.strip() for line in traceback.splitlines() if line.strip()]
    errors = [line for line in lines if ERROR.match(line)]
    of_ranks = [line for line in errors if "exited with error code" not in line]
    return (of_ranks or errors or lines[-1:])[0][:200]
