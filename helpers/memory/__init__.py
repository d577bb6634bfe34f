"""Where the memory goes: bytes counted (LiveBytes) and bytes predicted (training_bytes).

And what goes over its wires: bytes that operators read and write (MovedBytes).

Built in chapter 02. Sizes are in bytes; MB and GB are 10**6 and 10**9.
"""

from helpers.memory.formula import (
    OPTIMIZERS,
    PRECISIONS,
    STATE_PER_PARAMETER,
    TrainingBytes,
    gpt_activation_bytes,
    training_bytes,
)
from helpers.memory.live_bytes import LiveBytes, Phase, saved_activation_bytes, storage_bytes
from helpers.memory.moved_bytes import MovedBytes

__all__ = [
    "OPTIMIZERS",
    "PRECISIONS",
    "STATE_PER_PARAMETER",
    "LiveBytes",
    "MovedBytes",
    "Phase",
    "TrainingBytes",
    "gpt_activation_bytes",
    "saved_activation_bytes",
    "storage_bytes",
    "training_bytes",
]
