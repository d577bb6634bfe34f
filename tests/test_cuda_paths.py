"""Scripts and helpers on a machine where each rank has a device of its own, played on the CPU.

No GPU and no NCCL take part: see foreign_device.py for what this can find, and what it cannot.
"""

import ast
import contextlib
import io
import json
import os
from functools import partial
from pathlib import Path

import notebook_cells as cells
import pytest
import torch
import torch.distributed as dist
from foreign_device import CPU, FOREIGN, ForeignTensor, WrongDevice, foreign_device

import helpers.exercises
from helpers import accumulate, compare, data_parallel, process_group, shared_memory
from helpers.compare.setup import Training
from helpers.compare.trainer import Trainer
from helpers.launch import run_function
from helpers.metrics import global_mean
from helpers.problems import classification_loss_sum, count_samples, digits, make_conv

WRAPS = {
    "naive": data_parallel.DataParallelNaive,
    "flat": data_parallel.DataParallelFlat,
    "buckets": partial(data_parallel.DistributedDataParallel, bucket_cap_mb=0.01),
    "views": partial(data_parallel.DistributedDataParallel, gradient_as_bucket_view=True),
    "unused": partial(data_parallel.DistributedDataParallel, find_unused_parameters=True),
    "static": partial(data_parallel.DistributedDataParallel, static_graph=True),
}
TRAINING = Training(
    partial(make_conv, norm="batch"),
    partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    classification_loss_sum,
    [tuple(x[12 * i : 12 * i + 12] for x in digits(torch.float64).train) for i in range(3)],
    count_samples,
    torch.float64,
)


def on_device(action, *arguments):
    """On a rank: run the action where ranks have FOREIGN; return its result, and what it sent."""
    process_group._choose = lambda backend, *place: ("gloo", FOREIGN)
    with foreign_device() as sent:
        return action(*arguments), list(sent)


# -- scripts -----------------------------------------------------------------------------------

#: Sends its judge's tensors from the CPU on purpose.
BOTH_DEVICES = "09_one_shot.py"
SCRIPTS = {
    name: text
    for path in cells.chapters()
    for name, text in cells.scripts(cells.read(path))
    if "ranks.device" in text and "\nfails:" not in text and name != BOTH_DEVICES
}


def execute(texts):
    """Run scripts one after the other; return rank 0's report of each."""
    reports = {}
    for name, text in texts.items():
        with contextlib.redirect_stdout(io.StringIO()) as said:
            exec(compile(text, name, "exec"), {"__name__": "__main__"})
        reports[name] = json.loads(said.getvalue() or "null")
    return reports


@pytest.fixture(scope="module")
def reported():
    return run_function(on_device, execute, SCRIPTS)


def test_scripts_that_ask_for_the_device_send_from_it_only(reported):
    assert len(SCRIPTS) >= 3
    for _, sent in reported:
        assert {kind for each in sent for kind in each.devices} == {FOREIGN.type}


def test_their_results_are_those_of_the_cpu(reported):
    (found, _), *_ = reported
    assert found == run_function(execute, SCRIPTS)[0]


def test_a_tensor_that_a_script_leaves_on_the_cpu_is_seen():
    name, text = next((n, t) for n, t in SCRIPTS.items() if "01_sum" in n)
    forgotten = {name: text.replace(", device=ranks.device", "")}
    assert forgotten[name] != text
    for _, sent in run_function(on_device, execute, forgotten):
        assert CPU.type in {kind for each in sent for kind in each.devices}


def test_two_devices_in_one_operator_are_an_error():
    with foreign_device():
        there, here = torch.ones(2, device=FOREIGN), torch.ones(2)
        assert isinstance(there * 2 + torch.tensor(1.0), ForeignTensor)
        assert (there + here.to(FOREIGN)).tolist() == [2, 2]
        for wrong in (lambda: there + here, lambda: here.mul_(there), lambda: there[here.long()]):
            with pytest.raises(WrongDevice):
                wrong()


# -- helpers -----------------------------------------------------------------------------------


def train(training, ranks, num_micro_batches, wrap):
    trainer = Trainer(training, ranks, wrap)
    for step in range(len(training.batches)):
        trainer.train(step, num_micro_batches)
    return trainer.notes


def trained(device):
    """On a rank: three steps in each wrapper; the notes by wrapper."""
    with process_group.process_group() as ranks:
        assert ranks.device == device
        return {name: train(TRAINING, ranks, 2, wrap) for name, wrap in WRAPS.items()}


def beside_training():
    """On a rank: what else talks to the other ranks; None where it went well."""
    with process_group.process_group() as ranks:
        images, labels = (x.to(ranks.device) for x in digits(torch.float64).train)
        model = data_parallel.DistributedDataParallel(
            make_conv(dtype=torch.float64, seed=ranks.rank).to(ranks.device)
        )
        compare.assert_replicas_equal(model)
        adder = accumulate.GradientAccumulator(model.parameters())
        with model.join():
            for step in range(1 + ranks.rank):
                part = images[4 * step :][:4], labels[4 * step :][:4]
                classification_loss_sum(model, part).backward()
        adder.add()
        adder.assign()
        compare.assert_replicas_equal(model)
        total = torch.tensor([1.0, 2.0], device=ranks.device)
        means = global_mean(total * (1 + ranks.rank), 2)
        with pytest.raises(ValueError, match="found a tensor on meta, expected"):
            shared_memory.all_reduce(means)
        return means.device.type, means.tolist()


@pytest.fixture(scope="module")
def notes():
    return run_function(on_device, trained, FOREIGN), run_function(trained, CPU)


def test_wrappers_train_on_the_device_as_on_the_cpu(notes):
    for (there, _), here in zip(*notes, strict=True):
        assert there.keys() == here.keys() == WRAPS.keys()
        for found, expected in zip(there.values(), here.values(), strict=True):
            assert len(found) == len(expected) > 9
            for a, b in zip(found, expected, strict=True):
                assert compare.relative_error(a.tensors, b.tensors) == 0


def test_what_the_gate_notes_is_on_the_cpu_and_wrappers_send_from_the_device(notes):
    for by_wrap, sent in notes[0]:
        tensors = [x for each in by_wrap.values() for note in each for x in note.tensors.values()]
        assert {type(x) for x in tensors} == {torch.Tensor}
        assert len(sent) > 9 * len(WRAPS)
        assert {kind for each in sent for kind in each.devices} == {FOREIGN.type}


def test_join_metrics_and_replicas_stay_on_the_device():
    for (device, means), sent in run_function(on_device, beside_training):
        assert (device, means) == (FOREIGN.type, [0.75, 1.5])
        assert {kind for each in sent for kind in each.devices} == {FOREIGN.type}


# -- rules -------------------------------------------------------------------------------------


def test_checks_of_exercises_name_their_backend():
    """NCCL has no tags, queues messages one by one, and does not say which rank is missing."""
    calls = [
        (path.name, call.lineno, {keyword.arg for keyword in call.keywords})
        for path in sorted(Path(helpers.exercises.__file__).parent.glob("chapter_*.py"))
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "process_group"
    ]
    assert len(calls) > 10
    assert [call for call in calls if "backend" not in call[2]] == []


def closed_on_gpu(error):
    """On a rank: close as on a GPU, after this error; return whether what is queued was dropped."""
    done = []
    dist.ProcessGroup.abort = lambda group: done.append("abort")
    with process_group.process_group(backend="gloo"):
        process_group._close_on_gpu(error)
        assert not dist.is_initialized()
    return done


def test_an_error_on_a_gpu_drops_what_is_queued_before_it_closes():
    assert run_function(closed_on_gpu, ValueError) == [["abort"]] * 2
    assert run_function(closed_on_gpu, None) == [[], []]


def nccl_variables():
    return {name: value for name, value in os.environ.items() if name.startswith("TORCH_NCCL_")}


def test_nccl_is_told_what_the_caller_says_and_else_what_torchrun_says(monkeypatch):
    for name in nccl_variables():
        monkeypatch.delenv(name)
    told = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_BLOCKING_WAIT": "1"}
    assert run_function(nccl_variables, nproc_per_node=1, env=told) == [told]
    (by_torchrun,) = run_function(nccl_variables, nproc_per_node=1)
    assert by_torchrun == {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
