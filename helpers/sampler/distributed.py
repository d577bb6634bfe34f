"""Shards for training: torch's indices, and an epoch that can be taken up in its middle."""

import math
import warnings
from collections.abc import Iterator, Sized
from typing import Any

import torch
from torch.utils.data import Sampler

from .place import place, size_of

State = dict[str, int | bool]


class DistributedSampler(Sampler[int]):
    """This rank's share of each epoch: arguments and indices of torch's DistributedSampler. Local.

    All ranks draw the same order of the N samples from seed + epoch (or take 0, 1, ... with
    shuffle=False); rank r of W takes every W-th, from the r-th on. Where N does not divide by W,
    the order's first samples are appended once more, or with drop_last=True its last ones left
    out: every rank has equally many. Seed, shuffle and drop_last must be the same on all ranks.

    `num_replicas` and `rank` are those of the open process group unless given. Raises
    RuntimeError where there is none, or where the dataset's length has changed since; ValueError
    where there is no such rank; TypeError for a dataset without a length.

    After load_state_dict, `len` (and a DataLoader's) is that of the epoch's rest, to its end;
    `num_samples` is a whole one's. RuntimeError from an iterator that a later one has followed.

    Two things more than torch's. A second epoch in the first one's order, because `set_epoch` was
    forgotten, warns once, on rank 0. And training may stop in the middle of an epoch:

        sampler.advance(len(batch))          # after each step
        state = sampler.state_dict()         # the same numbers on every rank
        sampler.load_state_dict(state)       # later, on any number of ranks

    Source: torch.utils.data.distributed. Built in chapter 06.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ):
        self.num_replicas, self.rank = place(num_replicas, rank)
        self.dataset, self.dataset_size = dataset, size_of(dataset)
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.epoch = 0
        self._start = 0  # samples of this epoch that earlier jobs have trained on, all ranks
        self._num_iterators = 0
        self._handed_out = 0  # samples of this rank since the last iterator began
        self._advanced = 0  # of these, trained on
        self._is_resuming = False  # the next iterator begins at _start, not at 0
        self._ever_advanced = False
        self._last_epoch: int | None = None  # of the last iterator that handed out a sample
        self._has_warned = False

    @property
    def num_samples(self) -> int:
        """Samples of this rank in a whole epoch; the same on every rank."""
        return self._share_of(self.dataset_size)

    @property
    def total_size(self) -> int:
        """Samples of all ranks in a whole epoch, padding included."""
        return self.num_samples * self.num_replicas

    def _share_of(self, num_samples: int) -> int:
        if self.drop_last:
            return num_samples // self.num_replicas
        return math.ceil(num_samples / self.num_replicas)

    def __len__(self) -> int:
        return self._share_of(max(0, self.dataset_size - self._start))

    def __iter__(self) -> Iterator[int]:
        self._warn_of_an_old_order()
        if not self._is_resuming:
            self._start = 0
        self._is_resuming, self._handed_out, self._advanced = False, 0, 0
        self._num_iterators += 1
        return self._hand_out(self._share(), self._num_iterators)

    def _hand_out(self, share: list[int], iterator: int) -> Iterator[int]:
        for index in share:
            if iterator != self._num_iterators:  # whose samples `advance` counts must be clear
                found = "an iterator of this sampler was begun after this one"
                raise RuntimeError(f"{found}, expected one at a time; make a sampler for each")
            self._handed_out += 1
            self._last_epoch = self.epoch
            yield index

    def _share(self) -> list[int]:
        """This rank's samples from _start on. Strided, so all that was dealt is a prefix."""
        order = self._order()
        rest = order[self._start :]
        size = self._share_of(len(rest)) * self.num_replicas
        if size > len(rest):
            padding = size - len(rest)
            rest += (order * math.ceil(padding / len(order)))[:padding]
        return rest[self.rank : size : self.num_replicas]

    def _order(self) -> list[int]:
        """The whole epoch in the order in which all ranks together go through it."""
        if size_of(self.dataset) != self.dataset_size:
            raise RuntimeError(
                f"a dataset of {len(self.dataset)} samples, expected the {self.dataset_size} it "
                "had when the sampler was made; make a new one"
            )
        if not self.shuffle:
            return list(range(self.dataset_size))
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return torch.randperm(self.dataset_size, generator=generator).tolist()

    def set_epoch(self, epoch: int) -> None:
        """Order the next epoch by this number. Call it on every rank, before each iterator.

        The epoch that `load_state_dict` brought may be set once more: it stays in its middle.
        """
        if epoch != self.epoch:
            self._start = self._handed_out = self._advanced = 0
            self._is_resuming = False
        self.epoch = epoch

    def _warn_of_an_old_order(self) -> None:
        is_old = self.shuffle and self.epoch == self._last_epoch
        if is_old and self.rank == 0 and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"this epoch has the order of the one before: both are epoch {self.epoch}. Call "
                "sampler.set_epoch(epoch) on every rank before each epoch's iterator",
                stacklevel=3,
            )

    def advance(self, num_samples: int) -> None:
        """Count num_samples of this rank as trained on; call it after each step. Local.

        The sampler cannot know: a DataLoader with workers asks for batches ahead of training.
        Raises ValueError where that is more than the sampler has handed out.
        """
        if not 0 <= num_samples <= self._handed_out - self._advanced:
            raise ValueError(
                f"advance({num_samples}): {self._advanced} of {self._handed_out} samples handed "
                "out to this rank were trained on before; expected at most the rest "
                "(the samples of this rank, not of all)"
            )
        self._advanced += num_samples
        self._ever_advanced = True

    def state_dict(self) -> State:
        """Return where training stands: plain numbers, the same on every rank at one step. Local.

        consumed: samples of this epoch that all ranks together have trained on. Raises
        RuntimeError where samples were handed out and `advance` was never called.
        """
        if self._handed_out and not self._ever_advanced:
            raise RuntimeError(
                f"{self._handed_out} samples were handed out and none counted as trained on: call "
                "sampler.advance(len(batch)) after each step (advance(0) before the first)"
            )
        return {
            "epoch": self.epoch,
            "consumed": self._start + self._advanced * self.num_replicas,
            "world_size": self.num_replicas,
            **self._identity(),
        }

    def _identity(self) -> State:
        """What the order of an epoch depends on, besides its number."""
        seed = {"seed": self.seed} if self.shuffle else {}
        return {"dataset_size": self.dataset_size, "shuffle": self.shuffle, **seed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iterator begin where `state` was taken; later ones begin an epoch. Local.

        The number of ranks may be another: what is left of the epoch's order is dealt out anew,
        no sample repeated or skipped but for the padding (or drop_last) at its end. Then keep
        the global batch: the local one times the number of ranks. Raises ValueError where an
        entry is missing, or where the order would be another (dataset_size, shuffle, seed).
        """
        own = self._identity()
        missing = [name for name in ("epoch", "consumed", *own) if name not in state]
        if missing:
            raise ValueError(f"a sampler's state without {', '.join(missing)}: {sorted(state)}")
        odd = [
            f"{name}={state[name]}, expected {own[name]}"
            for name in own
            if state[name] != own[name]
        ]
        if odd or state["consumed"] < 0:
            found = "; ".join(odd) or f"consumed={state['consumed']}, expected 0 or more"
            raise ValueError(f"the state of another sampler: {found}")
        self.epoch, self._start = state["epoch"], state["consumed"]
        self._handed_out = self._advanced = 0
        self._is_resuming, self._last_epoch = True, None
