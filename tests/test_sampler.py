"""Samplers: torch's indices, each sample once in evaluation, epochs taken up in their middle."""

import itertools
import warnings
from collections import Counter

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler as TorchSampler

from helpers import launch, problems
from helpers.metrics import global_mean
from helpers.process_group import process_group
from helpers.sampler import DistributedSampler, EvaluationSampler, ShardedIterable

SIZES = (0, 1, 2, 3, 5, 8, 12, 13)
WORLDS = (1, 2, 3, 4, 7)
GRID = list(itertools.product(SIZES, WORLDS, (True, False), (True, False)))


def shares(make, num_samples: int, world_size: int, **options) -> list[list[int]]:
    """Every rank's indices, by rank."""
    dataset = range(num_samples)
    return [list(make(dataset, world_size, rank, **options)) for rank in range(world_size)]


def differs_from_torch(make) -> list[tuple]:
    """The cases of the grid in which a sampler's indices or length are not torch's."""
    odd = []
    for num_samples, world_size, shuffle, drop_last in GRID:
        for rank, seed in itertools.product(range(world_size), (0, 7)):
            where = (range(num_samples), world_size, rank, shuffle, seed, drop_last)
            ours, theirs = make(*where), TorchSampler(*where)
            for epoch in (0, 1, 10):
                ours.set_epoch(epoch)
                theirs.set_epoch(epoch)
                if list(ours) != list(theirs) or len(ours) != len(theirs):
                    odd.append((*where, epoch))
    return odd


def test_indices_are_torchs_exactly():
    assert differs_from_torch(DistributedSampler) == []
    ours, theirs = (make(range(10), 4, 1) for make in (DistributedSampler, TorchSampler))
    for name in ("num_samples", "total_size", "epoch", "seed", "shuffle", "drop_last", "rank"):
        assert getattr(ours, name) == getattr(theirs, name)


class WithoutPadding(DistributedSampler):
    """The mutant that deals out what is there: ranks differ in length."""

    def _share(self):
        return self._order()[self.rank :: self.num_replicas]


class SeedByRank(DistributedSampler):
    """The mutant whose ranks shuffle each for itself."""

    def _order(self):
        self.seed += self.rank
        order = super()._order()
        self.seed -= self.rank
        return order


@pytest.mark.parametrize("mutant", [WithoutPadding, SeedByRank])
def test_mutants_are_red(mutant):
    assert differs_from_torch(mutant)


def test_what_is_repeated_and_what_is_left_out():
    padded = Counter(itertools.chain(*shares(DistributedSampler, 10, 4, shuffle=False)))
    assert padded == Counter(range(10)) + Counter([0, 1])
    dropped = Counter(
        itertools.chain(*shares(DistributedSampler, 10, 4, shuffle=False, drop_last=True))
    )
    assert dropped == Counter(range(8))


@pytest.mark.parametrize("sampler", [DistributedSampler, EvaluationSampler, ShardedIterable])
def test_a_rank_that_there_is_not_is_refused(sampler):
    with pytest.raises(ValueError, match="rank 2 of 2, expected 0 to 1"):
        sampler(range(4), 2, 2)
    with pytest.raises(ValueError, match="rank -1 of 2"):
        sampler(range(4), 2, -1)
    with pytest.raises(ValueError, match="num_replicas is 0, expected at least 1"):
        sampler(range(4), 0, 0)
    for arguments in ((), (2,), (None, 0)):
        with pytest.raises(RuntimeError, match=r"inside process_group\(\), or pass num_replicas"):
            sampler(range(4), *arguments)


@pytest.mark.parametrize("sampler", [DistributedSampler, EvaluationSampler])
def test_a_dataset_without_a_length_is_refused(sampler):
    with pytest.raises(TypeError, match=r"without a length .*ShardedIterable"):
        sampler(iter([1]), 1, 0)


def test_a_dataset_that_grows_is_refused():
    dataset = [0, 1, 2]
    sampler = DistributedSampler(dataset, 2, 0)
    dataset.append(3)
    with pytest.raises(RuntimeError, match="of 4 samples, expected the 3"):
        iter(sampler)


def warnings_of(sampler, epochs, before=lambda sampler, epoch: None) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for epoch in range(epochs):
            before(sampler, epoch)
            list(sampler)
    return [str(warning.message) for warning in caught]


def test_set_epoch_forgotten_is_said_once_on_rank_0():
    forgotten = DistributedSampler(range(8), 2, 0)
    (said,) = warnings_of(forgotten, 4)
    assert "order of the one before: both are epoch 0" in said
    assert "sampler.set_epoch(epoch)" in said
    assert warnings_of(DistributedSampler(range(8), 2, 1), 4) == []
    assert warnings_of(DistributedSampler(range(8), 2, 0, shuffle=False), 4) == []
    always_the_same = warnings_of(
        DistributedSampler(range(8), 2, 0), 4, lambda sampler, epoch: sampler.set_epoch(3)
    )
    assert len(always_the_same) == 1


def test_set_epoch_called_is_not_warned_of():
    sampler = DistributedSampler(range(8), 2, 0)
    assert warnings_of(sampler, 4, lambda sampler, epoch: sampler.set_epoch(epoch)) == []
    never_read = DistributedSampler(range(8), 2, 0)
    iter(never_read)  # hands out nothing
    assert warnings_of(never_read, 1) == []
    sampler.load_state_dict(sampler_state(8, 2, 1))  # back to a checkpoint: the same order is meant
    assert warnings_of(sampler, 1) == []


def sampler_state(num_samples, world_size, consumed, epoch=0, **options) -> dict:
    """The state after each rank has trained on `consumed` samples."""
    sampler = DistributedSampler(range(num_samples), world_size, 0, **options)
    sampler.set_epoch(epoch)
    iterator = iter(sampler)
    for _ in range(consumed):
        next(iterator)
        sampler.advance(1)
    return sampler.state_dict()


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("num_samples", [0, 3, 13, 16])
def test_the_rest_of_an_epoch_is_torchs(num_samples, world_size, drop_last):
    for rank in range(world_size):
        theirs = TorchSampler(range(num_samples), world_size, rank, drop_last=drop_last)
        theirs.set_epoch(5)
        for consumed in range(len(theirs) + 1):
            state = sampler_state(num_samples, world_size, consumed, 5, drop_last=drop_last)
            sampler = DistributedSampler(range(num_samples), world_size, rank, drop_last=drop_last)
            sampler.load_state_dict(state)
            sampler.set_epoch(5)  # the loop over epochs says it again
            assert sampler.state_dict() == state  # nothing handed out since
            assert len(sampler) == len(theirs) - consumed
            assert list(sampler) == list(theirs)[consumed:]
            assert len(sampler) == len(theirs) - consumed  # of the epoch under way, to its end
            if rank:  # rank 0 would warn of the same order
                assert list(sampler) == list(theirs)  # one epoch only begins in the middle


def rest_after(resume, num_samples, before, consumed, after) -> Counter:
    """All samples of one epoch, trained on by `before` ranks and then by `after` ranks."""
    seen = Counter()
    for rank in range(before):
        sampler = DistributedSampler(range(num_samples), before, rank)
        seen.update(itertools.islice(sampler, consumed))
    for rank in range(after):
        sampler = DistributedSampler(range(num_samples), after, rank)
        resume(sampler, sampler_state(num_samples, before, consumed))
        seen.update(sampler)
    return seen


WORLD_CHANGES = list(itertools.product((13, 24), (1, 2, 3, 4), (0, 1, 3), (1, 2, 3, 4)))


def misses_or_repeats(resume) -> list[tuple]:
    """The changes of world after which samples are missing, or more are repeated than padded."""
    odd = []
    for num_samples, before, consumed, after in WORLD_CHANGES:
        seen = rest_after(resume, num_samples, before, consumed, after)
        padding = -(num_samples - before * consumed) % after
        if set(seen) != set(range(num_samples)) or seen.total() != num_samples + padding:
            odd.append((num_samples, before, consumed, after))
    return odd


def forgets_the_state(sampler, state):
    sampler.set_epoch(state["epoch"])


def counts_its_own_samples_only(sampler, state):
    consumed = state["consumed"] // state["world_size"] * sampler.num_replicas
    sampler.load_state_dict(state | {"consumed": consumed})


def test_another_world_goes_on_without_missing_or_repeating():
    assert misses_or_repeats(DistributedSampler.load_state_dict) == []
    assert misses_or_repeats(forgets_the_state)
    assert misses_or_repeats(counts_its_own_samples_only)


def test_the_world_may_change_twice():
    seen, state = Counter(), sampler_state(29, 1, 0)
    for world_size, consumed in ((2, 4), (3, 5), (1, 6)):
        samplers = [DistributedSampler(range(29), world_size, rank) for rank in range(world_size)]
        for sampler in samplers:
            sampler.load_state_dict(state)
            seen.update(itertools.islice(sampler, consumed))
            sampler.advance(consumed)
        state = samplers[0].state_dict()
        assert all(sampler.state_dict() == state for sampler in samplers)
    assert state["consumed"] == 2 * 4 + 3 * 5 + 1 * 6
    assert seen == Counter(range(29))


def test_what_workers_ask_for_ahead_is_not_trained_on():
    """num_workers=2 takes four batches before the first is trained on."""
    sampler = DistributedSampler(range(24), 2, 0)
    loader = DataLoader(TensorDataset(torch.arange(24)), 2, sampler=sampler, num_workers=2)
    batches = iter(loader)
    (seen,) = next(batches)
    sampler.advance(len(seen))
    assert sampler._handed_out >= 4 * 2
    assert sampler.state_dict()["consumed"] == 2 * 2
    other = DistributedSampler(range(24), 2, 0)
    other.load_state_dict(sampler.state_dict())
    rest = torch.cat([batch for (batch,) in batches])
    assert list(other) == rest.tolist()


def test_the_length_of_a_loader_is_what_it_will_give():
    sampler = DistributedSampler(range(24), 2, 0)
    sampler.load_state_dict(sampler_state(24, 2, 5))
    loader = DataLoader(range(24), 4, sampler=sampler)
    for epoch, num_batches in ((0, 2), (1, 3)):  # 7 samples, then 12
        sampler.set_epoch(epoch)
        assert len(loader) == num_batches
        assert len(list(loader)) == num_batches
    assert sampler.num_samples == 12


def test_two_iterators_at_once_are_refused():
    sampler = DistributedSampler(range(8), 2, 0, shuffle=False)
    first = iter(sampler)
    assert next(first) == 0
    second = iter(sampler)  # the first one was left: a loop that broke off
    assert [next(second), next(second)] == [0, 2]
    sampler.advance(2)
    with pytest.raises(RuntimeError, match="an iterator of this sampler was begun after this one"):
        next(first)
    assert list(second) == [4, 6]
    assert sampler.state_dict()["consumed"] == 4


def test_counts_that_cannot_be_are_refused():
    sampler = DistributedSampler(range(8), 2, 0)
    with pytest.raises(ValueError, match=r"advance\(1\): 0 of 0 samples"):
        sampler.advance(1)
    for _ in itertools.islice(sampler, 2):
        pass
    with pytest.raises(RuntimeError, match="2 samples were handed out and none counted"):
        sampler.state_dict()
    with pytest.raises(ValueError, match=r"advance\(4\): 0 of 2 .* this rank, not of all"):
        sampler.advance(4)
    with pytest.raises(ValueError, match=r"advance\(-1\)"):
        sampler.advance(-1)
    sampler.advance(0)
    assert sampler.state_dict()["consumed"] == 0


def test_the_state_of_another_sampler_is_refused():
    state = sampler_state(8, 2, 1, seed=3)
    assert state == {
        "epoch": 0,
        "consumed": 2,
        "world_size": 2,
        "dataset_size": 8,
        "shuffle": True,
        "seed": 3,
    }
    other = DistributedSampler(range(9), 2, 0, seed=4)
    found = "dataset_size=8, expected 9; seed=3, expected 4"
    with pytest.raises(ValueError, match=found):
        other.load_state_dict(state)
    with pytest.raises(ValueError, match="shuffle=True, expected False"):
        DistributedSampler(range(8), 2, 0, shuffle=False).load_state_dict(state)
    same = DistributedSampler(range(8), 2, 0, seed=3)
    with pytest.raises(ValueError, match="without consumed, seed"):
        same.load_state_dict({"epoch": 1, "dataset_size": 8, "shuffle": True})
    with pytest.raises(ValueError, match="consumed=-1"):
        same.load_state_dict(state | {"consumed": -1})


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("num_samples", SIZES)
def test_evaluation_has_each_sample_once(num_samples, world_size):
    dealt = shares(EvaluationSampler, num_samples, world_size)
    assert Counter(itertools.chain(*dealt)) == Counter(range(num_samples))
    lengths = [len(EvaluationSampler(range(num_samples), world_size, r)) for r in range(world_size)]
    assert lengths == [len(share) for share in dealt]
    assert max(lengths) - min(lengths) <= 1


def hits(num_samples: int) -> torch.Tensor:
    """[num_samples, 2] float64: a loss of each sample, and whether it was right."""
    generator = torch.Generator().manual_seed(0)
    losses = torch.rand(num_samples, generator=generator, dtype=torch.float64)
    return torch.stack([losses, (losses < 0.4).double()], dim=1)


def evaluate(make_sampler, num_samples: int) -> list[float]:
    """Every rank must call this: the mean loss and accuracy over all ranks, in batches of 2."""
    values = hits(num_samples)
    loader = DataLoader(TensorDataset(values), 2, sampler=make_sampler(range(num_samples)))
    total, count = torch.zeros(2, dtype=torch.float64), 0
    for (batch,) in loader:
        total += batch.sum(0)
        count += len(batch)
    return global_mean(total, count).tolist()


def counts_twice(dataset):
    """The mutant: a padded sampler for evaluation."""
    return DistributedSampler(dataset, shuffle=False)


def refusal(*arguments) -> str:
    try:
        global_mean(*arguments)
    except ValueError as refused:
        return str(refused)
    return "no refusal"


def on_ranks() -> dict:
    """Every rank must call this: all that is checked on real ranks, in one launch."""
    with process_group() as ranks:
        rank, world_size = ranks.rank, ranks.world_size
        found = {
            "place": [
                (made.rank, made.num_replicas)
                for made in (DistributedSampler([1]), EvaluationSampler([1]), ShardedIterable([1]))
            ],
            "exact": [evaluate(EvaluationSampler, size) for size in (1, 5, 11)],
            "twice": [evaluate(counts_twice, size) for size in (1, 5, 11)],
            "unequal": global_mean(10.0 if rank == 0 else 6.0, 10 if rank == 0 else 2),
            "of means": global_mean(global_of_own(rank), 1),
            "empty": refusal(0.0, 0),
            "bad": refusal(1.0, -1 if rank == world_size - 1 else 1),
            "nan": global_mean(float("nan") if rank == 0 else 1.0, 1),
            "shape": tuple(global_mean(torch.ones(2, 3), 2).shape),
        }
        dist.barrier()
        return found


def global_of_own(rank: int) -> float:
    """A rank's own mean: ten ones, or two threes."""
    return 1.0 if rank == 0 else 3.0


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_the_metric_is_the_serial_one_on_every_rank(world_size):
    expected = [hits(size).mean(0).tolist() for size in (1, 5, 11)]
    for rank, found in enumerate(launch.run_function(on_ranks, nproc_per_node=world_size)):
        assert found["place"] == [(rank, world_size)] * 3
        for ours, serial in zip(found["exact"], expected, strict=True):
            assert ours == pytest.approx(serial, rel=1e-12)
        is_padded = [size % world_size > 0 for size in (1, 5, 11)]
        wrong = [
            mutant != pytest.approx(serial, rel=1e-12)
            for mutant, serial in zip(found["twice"], expected, strict=True)
        ]
        assert wrong[1:] == is_padded[1:]  # a lone sample has the same mean twice
        assert found["unequal"] == pytest.approx((10 + 6 * (world_size - 1)) / (8 + 2 * world_size))
        assert found["of means"] == pytest.approx((1 + 3 * (world_size - 1)) / world_size)
        assert "count 0 on all ranks" in found["empty"]
        assert "negative or not finite on some rank" in found["bad"]
        assert found["nan"] != found["nan"]
        assert found["shape"] == (2, 3)


def test_global_mean_of_a_lone_process():
    assert global_mean(3.0, 2) == 1.5
    assert global_mean(torch.tensor([1, 3]), 2).tolist() == [0.5, 1.5]
    with pytest.raises(ValueError, match="negative or not finite"):
        global_mean(1.0, float("nan"))
    for total, found in (([1, 2], "list"), ("1", "str"), (None, "NoneType")):
        with pytest.raises(TypeError, match=f"total: found {found}, expected a number or a tensor"):
            global_mean(total, 2)


def dealt(dataset: IterableDataset, num_workers: int, batch_size: int) -> list[list[int]]:
    return [batch.tolist() for batch in DataLoader(dataset, batch_size, num_workers=num_workers)]


@pytest.mark.parametrize(("num_samples", "num_workers"), [(8, 0), (13, 0), (13, 2), (3, 2)])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_stream_is_dealt_over_ranks_and_workers(num_samples, num_workers, drop_last):
    batches = []
    for rank in range(2):
        shard = ShardedIterable(range(num_samples), 2, rank, drop_last=drop_last)
        batches.append(dealt(shard, num_workers, 2))
    seen = Counter(itertools.chain(*itertools.chain(*batches)))
    hands = 2 * max(num_workers, 1)
    kept = num_samples - num_samples % hands if drop_last else num_samples
    assert seen == Counter(range(kept))
    if drop_last:
        assert len(batches[0]) == len(batches[1])
    lengths = [sum(map(len, of_rank)) for of_rank in batches]
    assert abs(lengths[0] - lengths[1]) <= 1


class Unsharded(ShardedIterable):
    """The mutant that forgets the workers."""

    def __iter__(self):
        return itertools.islice(iter(self.stream), self.rank, None, self.num_replicas)


def test_a_stream_that_forgets_its_workers_is_seen_twice():
    seen = Counter(
        itertools.chain(*(x for r in range(2) for x in dealt(Unsharded(range(8), 2, r), 2, 2)))
    )
    assert seen == Counter(2 * list(range(8)))


def test_an_iterator_is_refused_and_a_stream_starts_anew():
    with pytest.raises(TypeError, match="a list_iterator can be read only once"):
        ShardedIterable(iter([1, 2]), 1, 0)
    shard = ShardedIterable([1, 2, 3], 2, 0)
    assert list(shard) == list(shard) == [1, 3]


def train(sizes: tuple[int, ...], global_batch_size: int) -> list[list[torch.Tensor]]:
    """Every rank must call this: parameters after an epoch of each size, gradients averaged."""
    with process_group() as ranks:
        return [_train_epoch(ranks, size, global_batch_size) for size in sizes]


def _train_epoch(ranks, size, global_batch_size):
    dataset = TensorDataset(*(x[:size] for x in problems.digits(torch.float64).train))
    sampler = DistributedSampler(dataset, seed=1)
    local_batch_size = global_batch_size // ranks.world_size
    model = problems.make_mlp((64, 8, 10), dtype=torch.float64)
    parameters = list(model.parameters())
    for batch in DataLoader(dataset, local_batch_size, sampler=sampler):
        loss = problems.classification_loss_sum(model, batch) / len(batch[1])
        for parameter, grad in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            dist.all_reduce(grad)
            parameter.data -= 0.5 * grad / ranks.world_size  # torch.optim takes a second to load
    return torch.cat([parameter.detach().flatten() for parameter in parameters])


def test_training_is_that_of_one_process_where_samples_divide():
    sizes = (60, 61)  # the second divides by none of 2, 3, 4
    alone = train(sizes, 12)
    for world_size in (3, 4):
        for found in launch.run_function(train, sizes, 12, nproc_per_node=world_size):
            errors = [((x - y).norm() / y.norm()).item() for x, y in zip(found, alone, strict=True)]
            assert errors[0] < 1e-12
            assert errors[1] > 1e-4
