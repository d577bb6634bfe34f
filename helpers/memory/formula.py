"""The memory formula: what a training step needs, from counts alone."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

#: Five optimizers of torch.optim by name: each takes parameters, the rest stays at its default.
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": torch.optim.SGD,
    "SGD+momentum": partial(torch.optim.SGD, momentum=0.9),
    "Adagrad": torch.optim.Adagrad,
    "RMSprop": torch.optim.RMSprop,
    "AdamW": torch.optim.AdamW,
}

#: Numbers that they keep for each parameter; their step counters (4 bytes a tensor) left out.
STATE_PER_PARAMETER = {"SGD": 0, "SGD+momentum": 1, "Adagrad": 1, "RMSprop": 1, "AdamW": 2}

#: Bytes per number: parameters, gradients, a second copy of the parameters, optimizer state.
#: That copy is bfloat16 casts, alive from forward until backward has used them (autocast), or
#: float32 masters (arXiv:1910.02054, section 3.1).
PRECISIONS = {
    "float32": (4, 4, 0, 4),
    "autocast": (4, 4, 2, 4),
    "master weights": (2, 2, 4, 4),
    "bfloat16": (2, 2, 0, 2),
}


@dataclass(frozen=True)
class TrainingBytes:
    """The terms of one training step's memory, in bytes."""

    parameters: int
    gradients: int
    copies: int
    optimizer_state: int
    activations: int

    @property
    def total(self) -> int:
        """Sum of all terms: needed where gradients stay, as they do in gradient accumulation."""
        return sum(vars(self).values())

    @property
    def peak(self) -> int:
        """The most at one time if gradients are freed before each forward, without scratch memory.

        Activations go while gradients come, so only the larger of the two counts.
        """
        return self.total - min(self.gradients, self.activations)


def training_bytes(
    num_parameters: int,
    optimizer: str = "AdamW",
    precision: str = "float32",
    *,
    activation_bytes: int = 0,
    gradient_copies: int = 1,
) -> TrainingBytes:
    """Return the predicted bytes of parameters, gradients, copies, state, activations. Local.

    ``gradient_copies`` is 2 under torch's DistributedDataParallel unless gradient_as_bucket_view
    is set, since its buckets are a second copy. ``autocast`` counts a cast for every parameter:
    an upper bound, as only those of matrix products and convolutions are cast. Raises ValueError
    for an unknown optimizer or precision. Source: arXiv:1910.02054, section 3.1. Chapter 02.
    """
    for found, expected in ((optimizer, STATE_PER_PARAMETER), (precision, PRECISIONS)):
        if found not in expected:
            raise ValueError(f"found {found!r}, expected one of {', '.join(expected)}")
    parameter, gradient, copy, state = PRECISIONS[precision]
    return TrainingBytes(
        parameters=num_parameters * parameter,
        gradients=num_parameters * gradient * gradient_copies,
        copies=num_parameters * copy,
        optimizer_state=num_parameters * state * STATE_PER_PARAMETER[optimizer],
        activations=activation_bytes,
    )


def gpt_activation_bytes(
    batch_size: int,
    *,
    width: int = 64,
    depth: int = 2,
    heads: int = 4,
    context: int = 128,
    vocabulary_size: int = 96,
    autocast: bool = False,
) -> int:
    """Return the bytes that ``problems.GPT`` and its loss keep from forward to backward. Local.

    Without what is checkpointed. Assumes attention written out (its weights are kept: heads x
    context numbers a token), no dropout, float32 or autocast to bfloat16 on a CPU (where softmax
    runs in bfloat16, too; its casts of weights are not activations and not counted). After
    Korthikanti et al. 2023, section 4.1, whose 34 + 5as/h bytes assume float16, dropout and
    a fused GELU. Chapter 02 counts the terms.
    """
    full, half = (4, 2) if autocast else (4, 4)
    # The residual stream feeds two norms, each with a mean and a deviation; the rest is products.
    block = full * (2 * width + 4) + half * (14 * width + heads * context)
    loss = full * (width + 2 + vocabulary_size) + half * width
    return batch_size * context * (depth * block + loss) + depth * context**2
