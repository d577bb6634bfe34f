"""Shards for evaluation: no padding, since a sample that counts twice changes the metric."""

from collections.abc import Iterator, Sized

from torch.utils.data import Sampler

from .place import place, size_of


class EvaluationSampler(Sampler[int]):
    """This rank's share of the dataset, where every sample is on exactly one rank. Local.

    Rank r gets r, r + world size, ... in this order: a share may have one sample less than
    another, and none where there are more ranks than samples. So the ranks may have different
    numbers of batches, and a collective in each batch would wait for ever (or meet another one).
    Add up sums and counts on each rank, and reduce them once at the end: `metrics.global_mean`.

    `num_replicas` and `rank` are those of the open process group unless given. Raises as
    `DistributedSampler` does. Built in chapter 06.
    """

    def __init__(self, dataset: Sized, num_replicas: int | None = None, rank: int | None = None):
        self.num_replicas, self.rank = place(num_replicas, rank)
        self.dataset = dataset
        self._share = range(self.rank, size_of(dataset), self.num_replicas)

    def __iter__(self) -> Iterator[int]:
        return iter(self._share)

    def __len__(self) -> int:
        return len(self._share)
