"""The gate as a command: its words, scripts that it is given, exit codes, what it leaves."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers.compare.notes import Difference
from helpers.compare.outcome import Outcome
from helpers.compare.variants import Variant
from helpers.gate import command, main, table
from helpers.gate.examples import path_of
from helpers.gate.failure import told
from helpers.gate.script import OPTIONAL, REQUIRED
from helpers.launch import RankFailed
from helpers.launch.frames import short_name

PLAIN = path_of("plain_loop")
SUM = "        parameter.grad /= dist.get_world_size()\n"


@pytest.fixture
def summed(tmp_path) -> str:
    path = tmp_path / "summed.py"
    path.write_text(PLAIN.read_text().replace(SUM, ""))
    return str(path)


def test_the_command_on_a_script_that_is_right(capsys, tmp_path):
    record = tmp_path / "gate.json"
    words = "--micro-batches", "2", "--ranks", "2", "--json", str(record)
    assert main([str(PLAIN), *words]) == 0
    said = capsys.readouterr().out
    assert said.startswith("plain_loop.py: your train_step, 3 steps, float64\n")
    assert "\nallowed, as parts of a norm: 1e-12\n" in said
    assert said.endswith("same: all 2 train as one process on the whole batch does\n")
    found = json.loads(record.read_text())
    assert found["same"] is True
    assert [row["resumed_from_ranks"] for row in found["variants"]] == [None, 2]
    assert all(0 < row["error"] < 1e-12 for row in found["variants"])


def test_the_command_on_a_script_that_is_not(capsys, tmp_path, summed):
    record = tmp_path / "gate.json"
    words = "--micro-batches", "1", "--ranks", "2", "--json", str(record)
    assert main([summed, *words]) == 1
    said = capsys.readouterr().out
    cause = "all gradients: 2 times too large, the number of ranks"
    assert f"likely cause (1 of 1): {cause}\n" in said
    assert "DIFFERS: 1 of 1; the first:" in said
    row, resumed = json.loads(record.read_text())["variants"]
    assert (row["same"], resumed["same"]) == (False, None)
    assert (row["step"], row["rank"], row["kind"], row["tensors"][0]) == (
        *(0, 0, "gradient"),
        "0.weight",
    )
    assert row["likely_cause"] == cause


PAIR = """
from typing import NamedTuple

import torch
from torch import nn


class Pair(NamedTuple):
    inputs: torch.Tensor
    labels: torch.Tensor


def make_model"""
AS_WRITTEN = """
import argparse

from .parts import Pair, make_model

torch.manual_seed(5)
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
arguments = parser.parse_args()
DATA = torch.randn(200, 16)
is_ready = False


class Batch(Pair):
    pass


def batches():
    for start in (0, 48, 96):
        inputs = DATA[start : start + 48]
        yield Batch(inputs, inputs[:, :4].argmax(1))


def count(batch):
    return len(batch.labels)


def wrap(model):
    global is_ready
    for parameter in () if is_ready else model.parameters():
        dist.broadcast(parameter.detach(), 0)
    is_ready = True
    return model
"""


def test_a_script_in_a_package_may_parse_words_seed_and_keep_globals(capsys, tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    model = PLAIN.read_text().partition("def make_model")[2].partition("def make_optimizer")[0]
    (package / "parts.py").write_text(PAIR + model)
    text = PLAIN.read_text().replace("def make_model", "def unused")
    (package / "train.py").write_text(text.replace("def main", AS_WRITTEN + "\n\ndef main"))
    words = "--micro-batches", "1,3", "--ranks", "1,2"
    assert main([str(package / "train.py"), *words]) == 0
    assert "same: all 7 train as one process" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no script 'nothing.py' in"),
        ("def make_model(): pass", "no function make_optimizer, batches, loss_sum, count"),
        ("import torch\nraise OSError('no data')", "script.py: OSError: no data"),
        ("def (", "script.py: SyntaxError"),
        ("import sys\nsys.exit(0)", "script.py: SystemExit: 0, expected to be imported"),
        ("open(0).read(1)[0]", "script.py: IndexError: string index out of range (line 1)"),
        (
            PLAIN.read_text() + "\n\ndist.init_process_group('gloo')\n",
            "script.py: it opens a process group as it is imported",
        ),
        (
            PLAIN.read_text() + "\n\ndef batches():\n    return open('data')\n",
            "script.py: FileNotFoundError: [Errno 2] No such file or directory: 'data' (line ",
        ),
        (
            PLAIN.read_text() + "\n\ndef batches():\n    return [[torch.ones(9), ['a']]] * 3\n",
            "TypeError: batch[1][0]: found str, expected a tensor with a dimension of samples",
        ),
        (PLAIN.read_text() + "\n\nsame_start = 1\n", "same_start is 1, expected True or False"),
        (PLAIN.read_text() + "\n\nsave_state = print\n", "one of save_state and load_state"),
        (PLAIN.read_text().replace("num_batches=3", "num_batches=2"), "2 batches, expected 3"),
        (PLAIN.read_text().replace("batch_size=48", "batch_size=8"), "a batch of 8 samples"),
    ],
)
def test_the_command_says_what_it_cannot_judge(capsys, tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path("script.py").write_text(text)
    assert main(["nothing.py" if text is None else "script.py"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("error", [RuntimeError("of its own"), BrokenPipeError()])
def test_the_command_never_fails_as_if_something_differed(tmp_path, monkeypatch, error):
    def fail(command):
        raise error

    monkeypatch.setattr(command, "_judge", fail)
    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert main(["script.py"]) == 2


SLOW = """

def train_step(*_):
    Path("started").touch()
    time.sleep(60)
"""


def test_a_command_that_is_stopped_leaves_nothing_behind(tmp_path):
    text = PLAIN.read_text().replace(
        "import torch\n", "import time\nfrom pathlib import Path\nimport torch\n", 1
    )
    (tmp_path / "slow.py").write_text(text.replace("\n\ndef main", SLOW + "\n\ndef main"))
    words = [sys.executable, "-m", "helpers.gate", "slow.py", "--ranks", "1"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    gate = subprocess.Popen(words, cwd=tmp_path, env=environment, stderr=subprocess.PIPE)
    while gate.poll() is None and not (tmp_path / "started").exists():
        time.sleep(0.05)
    gate.send_signal(signal.SIGTERM)
    _, said = gate.communicate(timeout=30)
    assert gate.returncode == 130
    assert b"stopped; nothing was written" in said
    assert not list(tmp_path.glob("launch-*"))


def test_a_record_that_cannot_be_written_is_told(capsys, monkeypatch):
    def fail(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(command, "write_json", fail)
    words = "--micro-batches", "1", "--ranks", "1", "--json", "a.json"
    assert main([str(PLAIN), *words]) == 2
    said = capsys.readouterr()
    assert "same: all 2 train" in said.out
    assert said.err == "not judged: a.json is not written: Permission denied\n"


def test_a_rank_that_fails_is_told_without_the_gates_frames():
    here = short_name(command.__file__)
    stood = f"rank 0 stood at a.py:3, in f: x; {here}:9, in g: y; b.py:1, in h: z (in wait)"
    frames = f"  {here}:9, in g: y\n  a.py:3, in f: x\n{stood}"
    error = RankFailed(0, "RuntimeError", "got dtype Float, not Double", "a.py:3", frames)
    said = told(error, "float64").splitlines()
    assert said[:3] == [
        "rank 0: RuntimeError: got dtype Float, not Double (a.py:3)",
        "  a.py:3, in f: x",
        "rank 0 stood at a.py:3, in f: x; b.py:1, in h: z (in wait)",
    ]
    assert "--dtype float32" in said[-1]
    assert "--dtype" not in told(error, "float32")


def test_a_script_that_fails_on_a_rank_is_not_judged(capsys, tmp_path):
    path = tmp_path / "fails.py"
    path.write_text(PLAIN.read_text().replace(SUM, "        raise ArithmeticError('here')\n"))
    assert main([str(path), "--ranks", "1", "--micro-batches", "1"]) == 2
    assert "not judged: rank 0: ArithmeticError: here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: script"),
        (["a.py", "--ranks", "1,0"], "found '0', expected a number, 1 or more"),
        (["a.py", "--ranks", "two"], "found 'two', expected a number"),
        (["a.py", "--tolerance", "0"], "found '0', expected a part of a norm, more than 0"),
        (["a.py", "--timeout", "nan"], "found 'nan', expected seconds, more than 0"),
        (["a.py", "--json", "a.txt"], "found 'a.txt', expected a name with .json"),
        (["a.py", "--json", "no/where/a.json"], "no folder 'no/where' to write into"),
        (["a.py", "--json", "folder.json"], "expected a place that can be written"),
        (["a.py", "--dtype", "bfloat16"], "invalid choice: 'bfloat16'"),
    ],
)
def test_the_commands_words_are_checked(capsys, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    Path("folder.json").mkdir()
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_where_causes_differ_each_is_told_with_its_first_line():
    difference = Difference(0, 0, "gradient", ("weight",), "the gradient weight is 1 off")
    found = Outcome(Variant(2, 3), False, 1.0, {"gradient": 1e-12}, 0, difference)
    each = [found._replace(cause=cause) for cause in ("a", "b", "b")]
    each[1] = each[1]._replace(variant=found.variant._replace(num_ranks=7))
    *_, first, second = table.summary(each).splitlines()
    assert first == f"likely cause (1 of 3, first at {found.variant}): a"
    assert second == f"likely cause (2 of 3, first at {each[1].variant}): b"
    assert table.summary(each[1:]).endswith("\nlikely cause (2 of 2): b")


def test_help_names_every_function_of_a_script(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert all(f"  {name}(" in said or f", {name}(" in said for name in (*REQUIRED, *OPTIONAL))
    assert "same_start = True" in said
    assert "it sees nothing of your loader" in said
    assert max(map(len, said.splitlines())) <= 100
