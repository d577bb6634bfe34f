"""Checks of chapter 05: gradients averaged over ranks, compared with one process, at 1e-12."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from helpers import problems
from helpers.accumulate import split_batch
from helpers.exercises.checking import Wrong, exercise, expect_close
from helpers.process_group import Ranks, process_group
from helpers.traffic import count_traffic

LOSS_SUM = problems.classification_loss_sum


class _Partly(nn.Module):
    """Two layers that share their weight; one parameter frozen, one that nobody uses."""

    def __init__(self):
        super().__init__()
        self.body = problems.make_mlp((64, 64, 64, 10), dtype=torch.float64)
        self.body[2].weight = self.body[0].weight
        self.body[0].bias.requires_grad_(False)
        self.unused = nn.Parameter(torch.ones(2, dtype=torch.float64))

    def forward(self, images: Tensor) -> Tensor:
        return self.body(images)


def _batch(size: int) -> tuple[Tensor, Tensor]:
    return tuple(x[:size] for x in problems.digits(torch.float64).train)


def _gradients(model: nn.Module) -> dict[str, Tensor | None]:
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def _whole(size: int) -> dict[str, Tensor | None]:
    """Gradients of the mean loss of one process on the whole batch."""
    model = _Partly()
    (LOSS_SUM(model, _batch(size)) / size).backward()
    return _gradients(model)


def _expect_gradients(model: nn.Module, expected: dict[str, Tensor | None]) -> None:
    for name, found in _gradients(model).items():
        right = expected[name]
        if found is None or right is None:
            if found is not right:
                kinds = ["None" if x is None else "a tensor" for x in (found, right)]
                raise Wrong(f"the gradient of {name} is {kinds[0]}, expected {kinds[1]}")
            continue
        expect_close(found, right, f"the gradient of {name}")


def _backward_of_shard(ranks: Ranks) -> tuple[nn.Module, dict[str, Tensor]]:
    """A model with the gradients of this rank's mean loss, and copies of its parameters."""
    model = _Partly()
    images, labels = problems.split(_batch(24), ranks.rank, ranks.world_size)
    (LOSS_SUM(model, (images, labels)) / len(labels)).backward()
    return model, {name: x.detach().clone() for name, x in model.named_parameters()}


def _expect_unchanged(model: nn.Module, before: dict[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        expect_close(parameter, before[name], f"the parameter {name}, which is not to change,")


def _joined(solution: Callable, *arguments: object) -> None:
    """Run the solution; Wrong where a collective of it was left alone by another rank."""
    try:
        solution(*arguments)
    except RuntimeError as error:
        if not (isinstance(error, dist.DistBackendError) or "gloo" in str(error)):
            raise
        raise Wrong("a collective failed here: another rank did not enter it") from error


@exercise("05-average", ranks=True)
def average(average_gradients: Callable[[nn.Module], None]) -> None:
    """average_gradients(model): each gradient becomes its mean over ranks. Every rank."""
    with process_group(backend="gloo", timeout_s=4) as ranks:
        model, before = _backward_of_shard(ranks)
        _joined(average_gradients, model)
        _expect_gradients(model, _whole(24))
        _expect_unchanged(model, before)


@exercise("05-flat", ranks=True)
def flat(average_flat: Callable[[nn.Module], None]) -> None:
    """The same by one all-reduce of as many bytes as the gradients have."""
    with process_group(backend="gloo", timeout_s=4) as ranks:
        model, before = _backward_of_shard(ranks)
        grads = {name: x for name, x in _gradients(model).items() if x is not None}
        with count_traffic() as traffic:
            _joined(average_flat, model)
        _expect_gradients(model, _whole(24))
        _expect_unchanged(model, before)
        called = {name: count for name, count in traffic.collectives.items() if count}
        if called != {"all_reduce": 1}:
            raise Wrong(f"collectives {called}, expected one all_reduce")
        num_bytes = sum(grad.numel() * grad.element_size() for grad in grads.values())
        if traffic.payload_bytes != num_bytes:
            raise Wrong(f"{traffic.payload_bytes} bytes, the gradients have {num_bytes}")


@exercise("05-window", ranks=True)
def window(backward_window: Callable) -> None:
    """backward_window(model, window, loss_sum, total): the sum over all windows. Every rank."""
    with process_group(backend="gloo", timeout_s=4) as ranks:
        for num_micro_batches in (1, 3):
            batch = problems.split(_batch(24), ranks.rank, ranks.world_size)
            size = 24 // ranks.world_size // num_micro_batches
            model = _all_used()
            with count_traffic() as traffic:
                _joined(backward_window, model, split_batch(batch, size), LOSS_SUM, 24)
            expected = _all_used()
            (LOSS_SUM(expected, _batch(24)) / 24).backward()
            _expect_gradients(model, _gradients(expected))
            found, most = traffic.collectives["all_reduce"], len(list(model.parameters()))
            if found > most:
                raise Wrong(f"{found} all-reduces for {most} parameters, expected no more")


def _all_used() -> nn.Module:
    return problems.make_mlp((64, 16, 10), dtype=torch.float64)
