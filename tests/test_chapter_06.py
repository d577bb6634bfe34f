"""Chapter 06: what its text claims, its stream beside the helper's, its figures."""

import itertools
from types import SimpleNamespace

import notebook_cells
import pytest

from helpers.figures import sampling, to_svg
from helpers.sampler import DistributedSampler, ShardedIterable, stream

CORNERS = list(itertools.product((3, 10), (1, 4), (False, True), (False, True)))


@pytest.mark.parametrize(("num_samples", "world_size", "shuffle", "drop_last"), CORNERS)
def test_the_map_shows_every_position_and_what_is_missing(
    num_samples, world_size, shuffle, drop_last
):
    figure = sampling.coverage(num_samples, world_size, shuffle, drop_last, slots=(4, 10))
    shown = [text.get_text() for text in figure.axes[0].texts if text.get_text().isdigit()]
    dealt = list(itertools.chain(*sampling.shares(num_samples, world_size, shuffle, drop_last)))
    missing = sorted(set(range(num_samples)) - set(dealt))
    assert sorted(map(int, shown)) == sorted(dealt + missing)
    hollow = [line for line in figure.axes[0].lines if line.get_markerfacecolor() == "white"]
    assert len(hollow) == len(dealt) - len(set(dealt)) + len(missing)
    expected = num_samples % world_size if drop_last else -num_samples % world_size
    assert len(hollow) == expected
    word = "missing" if drop_last else "repeated"
    assert f"{expected} {word}" in figure.shows
    assert to_svg(figure, "alt") == to_svg(
        sampling.coverage(num_samples, world_size, shuffle, drop_last, slots=(4, 10)), "alt"
    )


def test_an_epoch_in_two_worlds_names_the_rank_of_every_place():
    figure = sampling.epoch_in_two_worlds(12, 2, 4, 3)
    upper, lower = [], []
    for text in figure.axes[0].texts:
        (lower if text.get_position()[1] else upper).append(int(text.get_text()))
    assert upper == [0, 1] * 6
    assert lower == [0, 1, 0, 1, 0, 1, 2, 0, 1, 2, 0, 1]


def test_accuracy_against_ranks_draws_all_of_them():
    figure = sampling.accuracy_against_ranks(range(1, 5), [0.5] * 4, 0.6, [(0.4, 0.7)] * 4)
    assert [len(line.get_xdata()) for line in figure.axes[0].lines] == [2, 4]


def chapter_stream():
    """The script's stream, as a module of its own would hold it."""
    notebook = notebook_cells.read(notebook_cells.chapter("06"))
    names = {"__name__": "script"}
    exec(dict(notebook_cells.scripts(notebook))["06_stream.py"], names)
    return names


@pytest.mark.parametrize("num_workers", [1, 2])
def test_the_stream_of_the_script_is_the_helpers(monkeypatch, num_workers):
    names = chapter_stream()
    for rank, worker_id in itertools.product(range(3), range(num_workers)):
        worker = SimpleNamespace(id=worker_id, num_workers=num_workers)
        names["get_worker_info"] = lambda worker=worker: worker
        monkeypatch.setattr(stream, "get_worker_info", lambda worker=worker: worker)
        small = names["Stream"](SimpleNamespace(rank=rank, world_size=3), True)
        assert list(small) == list(ShardedIterable(range(8), 3, rank))


def test_the_counts_of_the_first_exercise():
    padded = [len(DistributedSampler(range(1000), 7, rank)) for rank in range(7)]
    assert padded == [143] * 7
    assert 7 * 143 - 1000 == 1
    assert divmod(143, 32) == (4, 15)
    assert len(DistributedSampler(range(1000), 7, 0, drop_last=True)) == 142
    assert 1000 - 7 * 142 == 6
    assert divmod(142, 32) == (4, 14)


def seen_with_seed_by_rank(world_size: int) -> float:
    """The part of 10,000 samples that an epoch sees where each rank shuffles for itself."""
    samplers = (DistributedSampler(range(10_000), world_size, r, seed=r) for r in range(world_size))
    return len(set(itertools.chain(*samplers))) / 10_000


def test_the_part_that_is_seen_where_each_rank_shuffles_for_itself():
    for world_size, part in ((2, 0.75), (4, 0.68), (64, 0.63)):
        assert 1 - (1 - 1 / world_size) ** world_size == pytest.approx(part, abs=0.007)
        assert seen_with_seed_by_rank(world_size) == pytest.approx(part, abs=0.02)


def test_shuffled_epochs_leave_out_nobody_for_ever():
    def seen(shuffle):
        samplers = [
            DistributedSampler(range(10), 4, rank, shuffle, drop_last=True) for rank in range(4)
        ]
        found = set()
        for epoch in range(20):
            for sampler in samplers:
                sampler.set_epoch(epoch)
                found.update(sampler)
        return found

    assert seen(shuffle=True) == set(range(10))
    assert seen(shuffle=False) == set(range(8))
