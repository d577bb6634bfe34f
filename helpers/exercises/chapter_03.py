"""Checks of the chapter "Gradient accumulation"."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, get_total_norm, parameters_to_vector

from helpers import problems
from helpers.accumulate import split_batch, windows
from helpers.exercises.checking import Wrong, exercise, expect_close

OPTIMIZERS = {"SGD": torch.optim.SGD, "Adam": torch.optim.Adam}


def _mean_gradients(model: nn.Module, window: list) -> float:
    """Leave the gradient of the window's mean loss in the model, computed at once; return it."""
    inputs, labels = (torch.cat(parts) for parts in zip(*window, strict=True))
    model.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    return loss.item()


@exercise("03-step")
def step(solution: Callable) -> None:
    """Predict the ratio of two first steps, one with gradients K times too large."""
    for name in OPTIMIZERS:
        for num_micro_batches, norm, max_norm in (
            (8, 0.5, None),
            (8, 0.5, 1.0),
            (4, 2.0, 1.0),
            (4, 0.5, 10.0),  # a threshold that neither gradient reaches
        ):
            found = solution(name, num_micro_batches, norm, max_norm)
            expected = _step_ratio(name, num_micro_batches, norm, max_norm)
            what = f"{name}, K = {num_micro_batches}, norm {norm}, max_norm {max_norm}: the ratio"
            expect_close(found, expected, what, tolerance=1e-2)  # Adam's eps is a small addend


def _step_ratio(name: str, num_micro_batches: int, norm: float, max_norm: float | None) -> float:
    lengths = []
    for factor in (1, num_micro_batches):
        model = problems.make_mlp(dtype=torch.float64)
        _mean_gradients(model, [tuple(x[:256] for x in problems.digits(torch.float64).train)])
        grads = [parameter.grad for parameter in model.parameters()]
        torch._foreach_mul_(grads, factor * norm / get_total_norm(grads).item())
        before = parameters_to_vector(model.parameters()).detach()
        if max_norm is not None:
            clip_grad_norm_(model.parameters(), max_norm)
        OPTIMIZERS[name](model.parameters(), lr=0.01).step()
        lengths.append((parameters_to_vector(model.parameters()) - before).norm().item())
    return lengths[1] / lengths[0]


@exercise("03-epoch")
def epoch(solution: Callable) -> None:
    """Train an epoch of 37 samples and compare with one big batch for each window."""
    batch = tuple(x[:37] for x in problems.digits(torch.float64).train)
    for micro_batch_size, num_micro_batches in ((4, 4), (4, 5), (4, 16), (37, 2)):
        micro_batches = split_batch(batch, micro_batch_size)
        case = f"{len(micro_batches)} micro-batches in windows of {num_micro_batches}"
        models = [problems.make_mlp(dtype=torch.float64) for _ in range(2)]
        expected, steps = _train_at_once(models[0], windows(micro_batches, num_micro_batches))
        _mean_gradients(models[1], micro_batches[:1])  # left over from whatever came before
        optimizer = _CountingSGD(models[1].parameters(), lr=0.1)
        found = solution(models[1], optimizer, micro_batches, num_micro_batches)
        if len(optimizer.norms) != steps:
            raise Wrong(f"{case}: {len(optimizer.norms)} updates, expected {steps}")
        if found is None or len(found) != steps:
            raise Wrong(f"{case}: returned {found!r}, expected the mean loss of {steps} windows")
        for index, (loss, mean) in enumerate(zip(found, expected, strict=True)):
            expect_close(loss, mean, f"{case}: the logged loss of window {index}")
        vectors = [parameters_to_vector(model.parameters()) for model in models]
        expect_close(vectors[1], vectors[0], f"{case}: the vector of parameters")


def _train_at_once(model: nn.Module, all_windows) -> tuple[list[float], int]:
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for window in all_windows:
        losses.append(_mean_gradients(model, window))
        optimizer.step()
    return losses, len(losses)


class _CountingSGD(torch.optim.SGD):
    """Notes the norm of the gradients at each step that really happens."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.norms = []

    def step(self, closure=None):
        grads = [x.grad for group in self.param_groups for x in group["params"]]
        self.norms.append(get_total_norm([x for x in grads if x is not None]).item())
        return super().step(closure)


@exercise("03-scaler")
def scaler(solution: Callable) -> None:
    """Ten updates behind a loss scale of 1024, the sixth with a gradient that is infinite.

    The scale doubles after every third good update in a row, so it also grows in between.
    """
    model, max_norm = problems.make_mlp(), 0.1
    optimizer = _CountingSGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=10)
    grad_scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    scales = [1024.0] * 2 + [2048.0] * 3 + [1024.0] * 3 + [2048.0] * 2  # after each update
    for index in range(10):
        is_infinite = index == 5
        norm = _scaled_backward(model, grad_scaler, index, is_infinite)
        solution(grad_scaler, optimizer, scheduler, list(model.parameters()), max_norm)
        steps = index + (index < 5)
        _expect(f"update {index}: steps so far", len(optimizer.norms), steps)
        _expect(f"update {index}: where the scheduler stands", scheduler.last_epoch, steps)
        _expect(f"update {index}: the loss scale after it", grad_scaler.get_scale(), scales[index])
        if not is_infinite:
            what = f"update {index}: the norm of the gradient that steps"
            expect_close(optimizer.norms[-1], min(norm, max_norm), what, tolerance=1e-4)


def _scaled_backward(model: nn.Module, grad_scaler, index: int, is_infinite: bool) -> float:
    """Leave scaled gradients in the model, return their norm without the scale."""
    model.zero_grad()
    batch = tuple(x[32 * index : 32 * (index + 1)] for x in problems.digits().train)
    loss = problems.classification_loss_sum(model, batch) / 32
    grad_scaler.scale(loss * (float("inf") if is_infinite else 1.0)).backward()
    norm = get_total_norm([x.grad for x in model.parameters()]).item()
    return norm / grad_scaler.get_scale()


def _expect(what: str, found: float, expected: float) -> None:
    if found != expected:
        raise Wrong(f"{what}: {found}, expected {expected}")
