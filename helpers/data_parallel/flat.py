"""Data parallel with one message: all gradients in one flat buffer, after backward."""

import torch
import torch.distributed as dist

from helpers.buckets import Bucket
from helpers.data_parallel.naive import DataParallelNaive
from helpers.data_parallel.slots import copy_all


class DataParallelFlat(DataParallelNaive):
    """A `DataParallelNaive` that averages all gradients at once: one all-reduce, not one each.

    The same values, the same rules for missing gradients, the same bytes; one latency instead of
    as many as there are parameters, for one more copy of the gradients while it runs. Like the
    naive one it starts after backward, so nothing is hidden behind compute.

    Every rank must construct it. Source: arXiv:2006.15704, section 3.2.1. Built in chapter 10.
    """

    @torch.no_grad()
    def average_gradients(self) -> None:
        """Replace each gradient by its mean over the ranks: a sum, divided by the world size once.

        Every rank must call this, after its last backward of a step and before the optimizer's.
        One all-reduce for each dtype and device, and a small one ahead of them, as the naive one
        makes: it tells which ranks have which gradient. Raises ValueError on every rank where a
        gradient is sparse.
        """
        counts = zip(self.parameters(), self._count_gradients(), strict=True)
        used = [parameter for parameter, num_ranks in counts if num_ranks > 0]
        kinds = dict.fromkeys((p.dtype, p.device) for p in used)
        for kind in kinds:
            self._average(Bucket(p for p in used if (p.dtype, p.device) == kind))

    def _average(self, bucket: Bucket) -> None:
        places = list(zip(bucket.parameters, bucket.views, strict=True))
        # a gradient that this rank lacks: the zeros that are there
        copy_all([(p.grad, view) for p, view in places if p.grad is not None])
        dist.all_reduce(bucket.buffer, group=self.process_group)
        bucket.buffer /= dist.get_world_size(self.process_group)
        for parameter in bucket.parameters:
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
        copy_all([(view, p.grad) for p, view in places])
