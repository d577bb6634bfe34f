"""Summed losses and what they are to be divided by: sum and count part here, and meet once.

A sum over micro-batches or ranks is exact; a mean of means is not (chapter 04). So each loss of
the book returns a sum, and each has a count that says over how many terms.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from .data import IGNORE_INDEX, Batch


def classification_loss_sum(model: nn.Module, batch: Batch) -> Tensor:
    """Return the cross-entropy of (inputs [B, ...], labels [B]) summed over samples. Local."""
    inputs, labels = batch
    return F.cross_entropy(model(inputs), labels, reduction="sum")


def count_samples(batch: Batch) -> int:
    """Return the number of samples, B. Local."""
    return len(batch[1])


def token_loss_sum(model: nn.Module, batch: Batch) -> Tensor:
    """Return the cross-entropy of (inputs [B, T], targets [B, T]) summed over tokens. Local.

    Targets equal to IGNORE_INDEX add nothing; with no other target the sum is 0, its gradients
    too.
    """
    inputs, targets = batch
    logits = model(inputs)
    return F.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE_INDEX, reduction="sum"
    )


def count_tokens(batch: Batch) -> int:
    """Return the number of targets that count, those not equal to IGNORE_INDEX. Local."""
    return int((batch[1] != IGNORE_INDEX).sum())
