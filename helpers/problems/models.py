"""Small models, drawn from a seed of their own: the same numbers on every rank and in every dtype.

Legend of shapes: B samples, T tokens, W width, H heads, D = W / H.
"""

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as checkpointed


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the CPU's generator inside, and leave it outside as if nothing had been drawn."""
    state = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(state)


def _cast(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return the model, its floating-point tensors cast in place; what is tied stays tied.

    `Module.to` does the same, but not with fake tensors (torch 2.13: "Couldn't swap").
    """
    for tensor in itertools.chain(model.parameters(), model.buffers()):
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(dtype)
    return model


def make_mlp(
    sizes: Sequence[int] = (64, 128, 128, 10),
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> nn.Sequential:
    """Return Linear layers of these sizes with ReLU between them; the default suits digits. Local.

    Drawn in float32 and then cast, so that every dtype starts from the same numbers.
    """
    with _seeded(seed):
        layers = []
        for num_inputs, num_outputs in itertools.pairwise(sizes):
            layers += [nn.Linear(num_inputs, num_outputs), nn.ReLU()]
        return _cast(nn.Sequential(*layers[:-1]), dtype)


def make_conv(
    *, seed: int = 0, dtype: torch.dtype = torch.float32, norm: str = "group"
) -> nn.Sequential:
    """Return a small convolutional network for digits, [B, 64] to [B, 10]. Local.

    norm "group" (GroupNorm: each sample by itself) or "batch" (BatchNorm: samples see each
    other, and then accumulation is not the big batch). Raises ValueError for any other.
    """
    if norm not in ("group", "batch"):
        raise ValueError(f'norm {norm!r}, expected "group" or "batch"')

    def normalise(channels: int) -> nn.Module:
        return nn.GroupNorm(4, channels) if norm == "group" else nn.BatchNorm2d(channels)

    with _seeded(seed):
        model = nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)),
            nn.Conv2d(1, 16, 3, padding=1),
            normalise(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            normalise(32),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, 10),
        )
        return _cast(model, dtype)


class Attention(nn.Module):
    """Causal self-attention, written out: a token is a mean of the values at and before it."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:  # [B, T, W]
        parts = self.query_key_value(x).chunk(3, dim=-1)
        query, key, value = (  # [B, H, T, D]
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts
        )
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])  # [B, H, T, T]
        length = x.shape[1]
        is_future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(is_future, float("-inf")).softmax(dim=-1)
        return self.output((weights @ value).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention, then an MLP for each token; each reads a normalised copy and adds to x."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:  # [B, T, W]
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class GPT(nn.Module):
    """A small decoder: tokens [B, T] int64 to logits [B, T, vocabulary_size]; pre-norm, no dropout.

    checkpoint=True keeps only each block's input and computes the rest again in backward.
    tied=True lets the head and the token embedding share one parameter.
    Raises ValueError where heads do not divide width, or where T is longer than context.

    Source: Radford et al. 2019 (GPT-2) for pre-norm and scaling. Chapter 02 measures it.
    """

    def __init__(
        self,
        vocabulary_size: int = 96,
        width: int = 64,
        depth: int = 2,
        heads: int = 4,
        context: int = 128,
        checkpoint: bool = False,
        tied: bool = False,
    ):
        super().__init__()
        if width % heads:
            raise ValueError(f"a width of {width} does not divide by {heads} heads")
        self.context, self.checkpoint = context, checkpoint
        self.token_embedding = nn.Embedding(vocabulary_size, width)
        self.position_embedding = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary_size, bias=False)
        self.apply(self._draw)
        if tied:
            self.head.weight = self.token_embedding.weight

    @staticmethod
    def _draw(module: nn.Module) -> None:
        """Draw weights as GPT-2 does: small enough that the first logits are almost equal."""
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        if length > self.context:
            raise ValueError(f"{length} tokens, expected at most {self.context}")
        positions = torch.arange(length, device=tokens.device)
        x = self.token_embedding(tokens) + self.position_embedding(positions)  # [B, T, W]
        for block in self.blocks:
            if self.checkpoint:  # no dropout, so there is no random state to bring back
                x = checkpointed(block, x, use_reentrant=False, preserve_rng_state=False)
            else:
                x = block(x)
        return self.head(self.norm(x))


def make_gpt(*, seed: int = 0, dtype: torch.dtype = torch.float32, **options: int | bool) -> GPT:
    """Return a GPT with these options, drawn from the seed in float32 and cast. Local."""
    with _seeded(seed):
        return _cast(GPT(**options), dtype)
