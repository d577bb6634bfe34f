"""A warm launch beside `torchrun --standalone`, and a first one: the same script, interleaved."""

import os
import subprocess
import sys
import time
from pathlib import Path

from helpers.launch import run

SCRIPT = """
import torch
import torch.distributed as dist
from helpers.process_group import process_group

with process_group() as ranks:
    dist.all_reduce(torch.ones(1))
"""
FIRST = "if __name__ == '__main__':\n from helpers.launch import run\n run('script.py')"


def seconds(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def in_terminal(*words):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(words, check=True, capture_output=True, env=environment, timeout=240)


def is_reached(fastest: dict[str, float]) -> bool:
    warm_enough = fastest["warm"] <= 0.25 * fastest["torchrun"]
    return warm_enough and fastest["first"] <= fastest["torchrun"]


def test_a_warm_launch_takes_a_quarter_of_torchrun_and_the_first_no_longer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text(SCRIPT)
    Path("first.py").write_text(FIRST)
    torchrun = (Path(sys.executable).with_name("torchrun"), "--standalone", "--nproc-per-node=2")
    run("script.py")  # warms up
    times = {"warm": [], "first": [], "torchrun": []}
    for _ in range(3):
        times["warm"] += [seconds(lambda: run("script.py")) for _ in range(2)]
        times["first"].append(seconds(lambda: in_terminal(sys.executable, "first.py")))
        times["torchrun"].append(seconds(lambda: in_terminal(*torchrun, "script.py")))
        fastest = {name: min(values) for name, values in times.items()}  # a busy machine only adds
        if is_reached(fastest):
            break
    for name, values in times.items():
        print(f"{name:9}", *(f"{value:.2f} s" for value in values))
    print(f"warm / torchrun  {fastest['warm'] / fastest['torchrun']:.3f}  (bound 0.25)")
    print(f"first / torchrun {fastest['first'] / fastest['torchrun']:.3f}  (bound 1)")
    assert is_reached(fastest)
