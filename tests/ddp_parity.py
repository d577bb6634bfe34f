"""Models with all that a DistributedDataParallel meets, and one training loop for every wrapper.

What torch's class, ours and one process make of the same problem is compared by the tests of
helpers.data_parallel.DistributedDataParallel.
"""

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as Stock

from helpers import problems
from helpers.compare import relative_error
from helpers.compare.errors import Tensors
from helpers.data_parallel import DistributedDataParallel as Ours
from helpers.process_group import Ranks, process_group

STEPS = 4
SMALL_CAP_MB = 0.004  # several buckets even for small models
Note = dict[str, Tensor | None]


class Oddities(nn.Module):
    """Frozen and tied weights, a transposed one, channels_last, a scalar, buffers that move."""

    def __init__(self, seed: int = 0, dtype: torch.dtype = torch.float64):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(shape, generator=generator).to(dtype) * 0.3)

        self.image = nn.Unflatten(1, (2, 4, 8))
        self.kernel = draw(6, 2, 3, 3)
        self.kernel.data = self.kernel.data.to(memory_format=torch.channels_last)
        self.frozen = draw(6, 1, 1).requires_grad_(False)
        self.transposed = nn.Parameter(draw(12, 40).t())
        self.tied = self.tied_again = draw(12, 12)
        self.scale = draw()
        self.head = draw(12, 10)
        self.register_buffer("mean", torch.full((12,), 0.1 + seed, dtype=dtype))
        self.register_buffer("calls", torch.tensor(seed))

    def forward(self, inputs: Tensor) -> Tensor:
        images = self.image(inputs)
        maps = nn.functional.conv2d(images, self.kernel, stride=(2, 2)) * self.frozen
        flat = maps.flatten(1)[:, : len(self.transposed)]
        hidden = (nn.functional.pad(flat, (0, 40 - flat.shape[1])) @ self.transposed).tanh()
        hidden = (hidden @ self.tied).tanh() @ self.tied_again + self.mean
        self.calls += 1
        return (hidden * self.scale) @ self.head


class MixedDtypes(nn.Module):
    """Weights of three dtypes, in turns, so that no bucket can hold neighbours."""

    def __init__(self, seed: int = 0):
        super().__init__()
        kinds = (torch.float32, torch.float64, torch.bfloat16, torch.float32, torch.float64)
        layers = [nn.Linear(64, 64) for _ in kinds]
        generator = torch.Generator().manual_seed(seed)
        for layer, kind in zip(layers, kinds, strict=True):
            layer.weight.data = torch.randn((64, 64), generator=generator) / 8
            layer.bias.data.zero_()
            layer.to(kind)
        self.layers = nn.ModuleList(layers)

    def forward(self, inputs: Tensor) -> Tensor:
        for layer in self.layers:
            inputs = layer(inputs.to(layer.weight.dtype)).tanh()
        return inputs[:, :10]


class PartlyUsed(nn.Module):
    """A branch for odd batches, one for odd ranks, one that nobody uses; all are linear layers."""

    def __init__(self, seed: int = 0, dtype: torch.dtype = torch.float64):
        super().__init__()
        self.body = problems.make_mlp((64, 32, 10), seed=seed, dtype=dtype)
        self.by_batch, self.by_rank, self.never = (
            problems.make_mlp((64, 10), seed=seed + n, dtype=dtype) for n in (1, 2, 3)
        )
        self.batch, self.rank = 0, 0

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = self.body(inputs)
        self.batch += 1
        if self.batch % 2:
            outputs = outputs + self.by_batch(inputs)
        if self.rank % 2:
            outputs = outputs + self.by_rank(inputs)
        return outputs


class NoGradient(torch.autograd.Function):
    """Passes a weight on, and gives it no gradient in backward."""

    @staticmethod
    def forward(ctx, weight):
        return weight.clone()

    @staticmethod
    def backward(ctx, grad):
        return None


class Undefined(nn.Module):
    """A weight whose gradient is undefined: autograd reaches it, with nothing."""

    def __init__(self, seed: int = 0):
        super().__init__()
        self.body = problems.make_mlp((64, 16, 10), seed=seed)
        self.reached = nn.Parameter(torch.ones(10) + seed)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.body(inputs) * NoGradient.apply(self.reached)


def mlp(seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Module:
    return problems.make_mlp((64, 40, 24, 10), seed=seed, dtype=dtype)


def batches(size: int = 24, steps: int = STEPS, dtype: torch.dtype = torch.float64) -> list:
    images, labels = problems.digits(dtype).train
    return [(images[i * size :][:size], labels[i * size :][:size]) for i in range(steps)]


def shard(batch: tuple[Tensor, Tensor], rank: int, world_size: int) -> tuple[Tensor, Tensor]:
    edges = [len(batch[1]) * r // world_size for r in range(world_size + 1)]
    return tuple(x[edges[rank] : edges[rank + 1]] for x in batch)


def mean_loss(model: nn.Module, part: tuple, total: int, world_size: int) -> Tensor:
    """The part's summed loss, such that the mean over ranks is the batch's mean."""
    loss = problems.classification_loss_sum(lambda x: model(x).double(), part)
    return loss * world_size / total


def train(
    model: nn.Module,
    rank: int = 0,
    world_size: int = 1,
    *,
    set_to_none: bool = True,
    lr: float = 0.1,
    dtype: torch.dtype = torch.float64,
    num_dry: int = 0,
) -> list[Note]:
    """Train on the digits with SGD; return each step's gradients and all of the model's state.

    The first `num_dry` steps leave the parameters as they are.
    """
    inner = getattr(model, "module", model)
    notes = []
    for step, batch in enumerate(batches(dtype=dtype)):
        model.zero_grad(set_to_none=set_to_none)
        part = shard(batch, rank, world_size)
        mean_loss(model, part, len(batch[1]), world_size).backward()
        notes.append(noted(inner))
        if step >= num_dry:
            descend(model, lr)
    return [*notes, {name: x.clone() for name, x in inner.state_dict().items()}]


@torch.no_grad()
def descend(model: nn.Module, lr: float = 0.1) -> None:
    """One step of SGD. (Making an optimizer of torch.optim takes seconds the first time.)"""
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter -= lr * parameter.grad


def noted(module: nn.Module) -> Note:
    """Copies of the gradients by name, and of the buffers."""
    found = {n: None if p.grad is None else p.grad.clone() for n, p in module.named_parameters()}
    return found | {name: buffer.clone() for name, buffer in module.named_buffers()}


def assert_same_bits(
    found: list[Note], expected: list[Note], first: int = 0, what: str = ""
) -> None:
    """From step `first` on; a difference names the step and the tensor."""
    for step in range(first, len(expected)):
        assert found[step].keys() == expected[step].keys()
        for name, tensor in expected[step].items():
            other = found[step][name]
            where = f"{what} step {step}, {name}"
            assert (other is None) == (tensor is None), f"{where}: {other} and {tensor}"
            if tensor is not None:
                assert other.dtype == tensor.dtype, where
                assert torch.equal(other, tensor), f"{where}: off {(other - tensor).abs().max()}"


def both(make: Callable[[int], nn.Module], rank: int, **options: Any) -> Iterator[nn.Module]:
    """Torch's class and ours round equal modules, drawn from another seed on each rank."""
    for wrap in (Stock, Ours):
        yield wrap(make(rank), **options)


def ours(ranks: Ranks, make: Callable[[int], nn.Module] = mlp, **options: Any) -> Ours:
    """The class round a model that is another one on each rank, in several buckets."""
    return Ours(make(ranks.rank), bucket_cap_mb=SMALL_CAP_MB, **options)


def loss_of(model: Callable, ranks: Ranks, step: int = 0) -> Tensor:
    """This rank's part of a batch's loss."""
    batch = batches()[step]
    part = shard(batch, ranks.rank, ranks.world_size)
    return mean_loss(model, part, len(batch[1]), ranks.world_size)


def alone(steps: Iterable[int]) -> Note:
    """The gradients of one process on these batches, each a mean, summed."""
    model = mlp()
    for step in steps:
        mean_loss(model, batches()[step], len(batches()[step][1]), 1).backward()
    return noted(model)


def assert_close(found: Tensors, expected: Tensors, what: str = "") -> None:
    error = relative_error(found, expected)
    assert error < 1e-12, f"{what}: {error!r}"


def run_checks(checks: Mapping[str, Callable], timeout_s: float = 20) -> dict[str, str]:
    """Run each check(ranks) in a group of its own; return the tracebacks of those that failed.

    Every rank must call this. A check that fails on one rank does not spoil the next.
    """
    failed = {}
    for name, check in checks.items():
        try:
            with process_group(timeout_s=timeout_s) as ranks:
                check(ranks)
                dist.barrier()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # what pytest.raises says when nothing was raised is no Exception
            failed[name] = traceback.format_exc()
    return failed


def named(*checks: Callable) -> dict[str, Callable]:
    return {check.__name__: check for check in checks}


def assert_none(failed: Iterable[Mapping[str, str]]) -> None:
    """Raise AssertionError with the tracebacks that `run_checks` returned on any rank."""
    for rank, tracebacks in enumerate(failed):
        texts = [f"rank {rank}, {name}\n{text}" for name, text in tracebacks.items()]
        assert not texts, "\n".join(texts)
