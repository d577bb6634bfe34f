"""What all samplers ask first: which rank am I, of how many, and how many samples are there."""

from collections.abc import Sized
from typing import Any

import torch.distributed as dist


def place(num_replicas: int | None, rank: int | None) -> tuple[int, int]:
    """Return (world size, rank), from the default process group where an argument is None. Local.

    Raises RuntimeError where one is None and no group is open, ValueError where there is no such
    rank.
    """
    if None in (num_replicas, rank):
        if not dist.is_initialized():
            raise RuntimeError(
                "no process group is open to ask for rank and world size: make the sampler "
                "inside process_group(), or pass num_replicas and rank"
            )
        num_replicas = dist.get_world_size() if num_replicas is None else num_replicas
        rank = dist.get_rank() if rank is None else rank
    if num_replicas < 1:
        raise ValueError(f"num_replicas is {num_replicas}, expected at least 1")
    if not 0 <= rank < num_replicas:
        raise ValueError(f"rank {rank} of {num_replicas}, expected 0 to {num_replicas - 1}")
    return num_replicas, rank


def size_of(dataset: Any) -> int:
    """Return the number of samples; TypeError, saying what to do, where there is none. Local."""
    if not isinstance(dataset, Sized):
        raise TypeError(
            f"a dataset without a length ({type(dataset).__name__}), expected one with __len__; "
            "a stream is dealt out by ShardedIterable"
        )
    return len(dataset)
