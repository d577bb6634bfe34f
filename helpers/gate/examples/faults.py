"""Faults of the three training scripts here, each as a change of a line or two.

The scripts themselves are right. What is said is a part of the gate's likely cause, with
3 micro-batches on 2 ranks; tests/test_gate_examples.py asserts it.
"""

from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent
SCRIPTS = ("plain_loop", "torch_ddp", "language_model")


def path_of(script: str) -> Path:
    """Return the file of one of `SCRIPTS`. Local."""
    return FOLDER / f"{script}.py"


class Fault(NamedTuple):
    """Pairs of (right, wrong) text in a script, and what the gate is to say."""

    script: str
    name: str
    changes: tuple[tuple[str, str], ...]
    says: str

    def text(self) -> str:
        """Return the script with the fault. ValueError: a right text is not there once. Local."""
        text = path_of(self.script).read_text()
        for right, wrong in self.changes:
            if text.count(right) != 1:
                raise ValueError(f"{self.script}: {right!r} {text.count(right)} times, expected 1")
            text = text.replace(right, wrong)
        return text


SUM_OF_RANKS = "        parameter.grad /= dist.get_world_size()\n"
MEAN_OF_WINDOW = "        loss = loss / len(micro_batches)\n"
ZERO_GRAD = "    optimizer.zero_grad()\n"
IN_PLAIN_LOOP = "    for inputs, labels in micro_batches:\n"
IN_DDP_LOOP = "            (loss / len(micro_batches)).backward()\n"
CLIP, SCHEDULE = "    clip(model.parameters())\n", "    scheduler.step()\n"
LOAD_SCHEDULER = '    scheduler.load_state_dict(state["scheduler"])\n'
LOAD_OPTIMIZER = '    optimizer.load_state_dict(state["optimizer"])\n'
OF_ALL_TOKENS = "        part = loss_sum(model, batch) / num_tokens\n"
OF_OWN_TOKENS = "        part = loss_sum(model, batch) / count(batch) / len(micro_batches)\n"
BACKWARD = "        (part * world_size).backward()  # DDP divides by it\n"

FAULTS = [
    Fault(
        "plain_loop",
        "not divided by the number of micro-batches",
        ((MEAN_OF_WINDOW, ""),),
        "all gradients: 3 times too large, the number of micro-batches",
    ),
    Fault(
        "plain_loop",
        "summed over the ranks, not averaged",
        ((SUM_OF_RANKS, ""),),
        "all gradients: 2 times too large, the number of ranks",
    ),
    Fault(
        "plain_loop",
        "zero_grad before each micro-batch",
        ((IN_PLAIN_LOOP, f"{IN_PLAIN_LOOP}    {ZERO_GRAD}"),),
        "only the last micro-batch is in it (as with zero_grad before each)",
    ),
    Fault(
        "plain_loop",
        "no zero_grad",
        ((ZERO_GRAD, ""),),
        "the gradient of the step before is still in it",
    ),
    Fault(
        "plain_loop",
        "a step for each micro-batch",
        (("        total += loss.detach()\n", "        optimizer.step()\n"),),
        "optimizer.step was called 4 times in step 0, expected 1",
    ),
    Fault(
        "plain_loop",
        "one parameter is not averaged",
        (
            (
                "    for parameter in model.parameters():\n",
                "    for parameter in list(model.parameters())[:-1]:\n",
            ),
        ),
        "2.bias alone of 4: this rank's own, not averaged over the ranks",
    ),
    Fault(
        "plain_loop",
        "replicas are not made equal",
        (("        dist.broadcast(tensor.detach(), src=0)\n", "        pass\n"),),
        "the parameters are those that the gate gave each rank",
    ),
    Fault(
        "torch_ddp",
        "the scheduler steps for each micro-batch",
        ((SCHEDULE, ""), (IN_DDP_LOOP, f"{IN_DDP_LOOP}        {SCHEDULE}")),
        "scheduler.step was called 3 times in step 0, expected 1",
    ),
    Fault(
        "torch_ddp",
        "clipped at each micro-batch",
        ((CLIP, ""), (IN_DDP_LOOP, f"{IN_DDP_LOOP}        {CLIP}")),
        "clipped at each micro-batch, expected once for the window",
    ),
    Fault(
        "torch_ddp",
        "not clipped",
        ((CLIP, ""),),
        "the gradient is not clipped when the optimizer steps",
    ),
    Fault(
        "torch_ddp",
        "a short window divided by the long one's number",
        (("loss / len(micro_batches)", "loss / num_micro_batches"),),
        "all gradients: 0.667 times the right one, a short window of 2 is divided by 3",
    ),
    Fault(
        "torch_ddp",
        "the model inside of DDP is called",
        (
            (
                "model(inputs), labels)\n            (",
                "model.module(inputs), labels)\n            (",
            ),
        ),
        "all gradients: this rank's own, not averaged over the ranks",
    ),
    Fault(
        "torch_ddp",
        "the scheduler is not loaded",
        ((LOAD_SCHEDULER, ""),),
        "after loading the scheduler's last_epoch has another value",
    ),
    Fault(
        "language_model",
        "a mean of means over micro-batches",
        ((OF_ALL_TOKENS, OF_OWN_TOKENS), (BACKWARD, "        part.backward()\n")),
        "each micro-batch is divided by its own count",
    ),
    Fault(
        "language_model",
        "each rank divides by its own tokens",
        (
            ("    dist.all_reduce(numbers)\n", ""),
            (BACKWARD, "        part.backward()\n"),
        ),
        "each rank divides by its own count",
    ),
    Fault(
        "language_model",
        "padding is counted",
        (("sum(count(batch) for batch", "sum(batch[1].numel() for batch"),),
        "times the right ones, a factor of no known cause",
    ),
    Fault(
        "language_model",
        "divided by the number of ranks twice",
        ((BACKWARD, "        part.backward()\n"),),
        "all gradients: 2 times too small, the number of ranks: divided once too often",
    ),
    Fault(
        "language_model",
        "the loss of one rank is told",
        (("    dist.all_reduce(loss)\n", ""),),
        "the loss told: this rank's share, not summed over the ranks, while",
    ),
    Fault(
        "language_model",
        "the optimizer is not loaded",
        ((LOAD_OPTIMIZER, ""),),
        "after loading the optimizer's state.0.",
    ),
]
