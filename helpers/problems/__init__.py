"""Seeded data, small models and summed losses: the problems that the whole book trains on."""

from .data import (
    IGNORE_INDEX,
    VOCABULARY_SIZE,
    Data,
    digits,
    encode,
    library_text,
    lines_batch,
    next_characters,
    split,
    token_batch,
)
from .losses import classification_loss_sum, count_samples, count_tokens, token_loss_sum
from .models import GPT, make_conv, make_gpt, make_mlp
from .sleeping import SleepingModel, Span, make_sleeping
from .sleeping_steps import Step, step_seconds, time_steps
from .stacked import StackedMLP

__all__ = [
    "GPT",
    "IGNORE_INDEX",
    "VOCABULARY_SIZE",
    "Data",
    "SleepingModel",
    "Span",
    "StackedMLP",
    "Step",
    "classification_loss_sum",
    "count_samples",
    "count_tokens",
    "digits",
    "encode",
    "library_text",
    "lines_batch",
    "make_conv",
    "make_gpt",
    "make_mlp",
    "make_sleeping",
    "next_characters",
    "split",
    "step_seconds",
    "time_steps",
    "token_batch",
    "token_loss_sum",
]
