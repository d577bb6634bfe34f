"""What ranks tell each other when they meet for a sum, and whether they mean the same one."""

from torch import Tensor

from helpers.collectives.agreement import DTYPES

from .peers import Peers


def agree(peers: Peers, flat: Tensor, buffer_number: int, timeout_s: float) -> list[int]:
    """Return each rank's `buffer_number`, once all have come; every rank must call this.

    Raises ValueError on every rank where lengths or dtypes differ; RuntimeError as `Peers.meet`.
    """
    kind = len(flat), DTYPES.index(flat.dtype)
    said = peers.meet((*kind, buffer_number), timeout_s)
    if any(other[:2] != kind for other in said):
        found = [
            f"rank {rank}: {length} x {DTYPES[index]}"
            for rank, (length, index, _) in enumerate(said)
        ]
        raise ValueError(f"ranks differ in what they sum: {'; '.join(found)}")
    return [number for _, _, number in said]
