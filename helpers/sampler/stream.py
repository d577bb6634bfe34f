"""A stream dealt out: no sampler can, so the dataset itself has to ask where it runs."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from .place import place


class ShardedIterable(IterableDataset):
    """The samples of a stream that fall to this rank and this DataLoader worker. Local.

    The stream is dealt round by round to all workers of all ranks, as cards are: worker w of
    rank r takes card w * world_size + r. Every one of them reads the whole stream, which must
    come in the same order everywhere; where reading is dear, deal out files instead of samples.

    drop_last=False: each sample exactly once, so ranks may differ by one sample, and by batches.
    drop_last=True: an incomplete last round is left out, and all ranks have equally many samples
    and, with equally many workers, batches: what training with a collective in each step needs.

    `num_replicas` and `rank` are those of the open process group unless given; they are read
    here, since a worker process has no group. Raises TypeError for an iterator, which only one
    epoch of one worker could read; as `DistributedSampler` does for ranks. Built in chapter 06.
    """

    def __init__(
        self,
        stream: Iterable[Any],
        num_replicas: int | None = None,
        rank: int | None = None,
        *,
        drop_last: bool = False,
    ):
        if iter(stream) is stream:
            raise TypeError(
                f"a {type(stream).__name__} can be read only once, expected an iterable that "
                "starts anew: a list, or an object whose __iter__ opens the stream"
            )
        self.stream, self.drop_last = stream, drop_last
        self.num_replicas, self.rank = place(num_replicas, rank)

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        worker_id, num_workers = (worker.id, worker.num_workers) if worker else (0, 1)
        # Ranks come first, workers second: what is left over is spread over the ranks.
        card = worker_id * self.num_replicas + self.rank
        hands = num_workers * self.num_replicas
        samples = iter(self.stream)
        while dealt := list(islice(samples, hands)):
            if len(dealt) == hands or (not self.drop_last and card < len(dealt)):
                yield dealt[card]
