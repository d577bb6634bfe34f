"""Chapter 08: its small versions under wrong twins, and what its text says of steps and costs."""

import notebook_cells
import pytest
import torch
import torch.distributed as dist

from helpers import collectives, cost_model
from helpers.figures.all_reduce import holdings, schedule
from helpers.launch import run_function
from helpers.link import LINKS
from helpers.process_group import process_group


@pytest.fixture(scope="module")
def chapter():
    return notebook_cells.namespace(notebook_cells.chapter("08"))


def on_ranks(all_reduces, world_size, lengths=(0, 1, 7, 64)):
    """How far each is from the serial sum, over all lengths, by rank."""

    def largest_errors():  # within a function, so that ranks need not import this module
        errors = []
        with process_group(timeout_s=10) as ranks:
            n = ranks.world_size
            for all_reduce in all_reduces:
                worst = 0.0
                for length in lengths:
                    places = torch.arange(length, dtype=torch.float64)
                    tensor = places * (1 + ranks.rank)
                    all_reduce(tensor)
                    error = (tensor - places * (n * (n + 1) / 2)).abs()
                    worst = max(worst, error.max().item() if length else 0.0)
                errors.append(worst)
                dist.barrier()
        return errors

    return run_function(largest_errors, nproc_per_node=world_size)


@pytest.mark.parametrize("world_size", [1, 3, 5])
def test_small_versions_are_the_serial_sum_and_wrong_twins_are_not(chapter, world_size):
    """Negative controls: a ring off by one chunk, a tree that forgets a child, a root one rank."""
    names = ("gather_broadcast", "tree", "ring")
    right = gather, tree, _ = [chapter[f"all_reduce_{name}"] for name in names]
    pass_on = chapter["pass_on"]

    def ring_off_by_one_chunk(tensor):
        pass_on(tensor, first=0, adds=True)
        pass_on(tensor, first=0, adds=False)

    def tree_that_forgets_a_child(tensor):
        tree(tensor if dist.get_rank() != 2 else torch.zeros_like(tensor))

    def root_that_doubles_itself(tensor):
        if dist.get_rank() == 0:
            tensor += tensor
        gather(tensor)

    wrong = [ring_off_by_one_chunk, tree_that_forgets_a_child, root_that_doubles_itself]
    twins = wrong if world_size == 3 else []
    by_way = list(zip(*on_ranks([*right, *twins], world_size), strict=True))
    assert all(max(errors) == 0 for errors in by_way[:3])
    assert all(max(errors) > 0 for errors in by_way[3:])


def test_the_small_ring_has_the_bits_of_the_helpers(chapter):
    small_ring = chapter["all_reduce_ring"]

    def sums():
        with process_group(timeout_s=10) as ranks:
            mine = torch.rand(1001, generator=torch.manual_seed(ranks.rank))
            theirs = mine.clone()
            small_ring(mine)
            collectives.all_reduce_ring(theirs)
            return torch.equal(mine, theirs), mine

    found = run_function(sums, nproc_per_node=3)
    assert all(equal and torch.equal(mine, found[0][1]) for equal, mine in found)


def test_the_table_of_costs_is_the_cost_models():
    """Messages, and bytes over S, as the page states them for n = 4; 64 stands for any 2^k."""
    size = 64 * 3 * 5 * 1024
    stated = {
        "gather_broadcast": lambda n, log: (2 * (n - 1), 2 * (n - 1)),
        "tree": lambda n, log: (2 * log, 2 * log),
        "ring": lambda n, log: (2 * (n - 1), 2 * (n - 1) / n),
        "doubling": lambda n, log: (log, log),
        "halving_doubling": lambda n, log: (2 * log, 2 * (n - 1) / n),
    }
    four = {"gather_broadcast": (6, 6), "tree": (4, 4), "ring": (6, 1.5)}
    four |= {"doubling": (2, 2), "halving_doubling": (4, 1.5)}
    for name, formula in stated.items():
        for n in (2, 4, 64):
            path = cost_model.critical_path(name, size, n)
            expected = formula(n, n.bit_length() - 1)
            assert (path.messages, path.sent_bytes / size) == pytest.approx(expected)
        assert formula(4, 2) == four[name]


@pytest.mark.parametrize("name", LINKS)
def test_doubling_wins_up_to_four_latencies_of_bytes(name):
    link = LINKS[name]
    crossing = 4e9 * link.latency_s * link.bandwidth_gb_per_s
    assert cost_model.choose(int(0.98 * crossing), 4, link) == "doubling"
    assert cost_model.choose(int(1.02 * crossing), 4, link) == "halving_doubling"


def test_what_the_steppers_are_said_to_show():
    steps = {way: schedule(way, 8)[0] for way in ("gather_broadcast", "tree", "doubling")}
    assert [len(each) for each in steps.values()] == [14, 6, 3]
    sent = [sum(t.sender == 0 for step in each for t in step) for each in steps.values()]
    assert sent == [7, 3, 3]
    for n in (3, 4):  # after the first half of a ring, chunk c is whole at rank c - 1, only there
        half = holdings("ring", n)[n - 1]
        whole = [(rank, c) for rank in range(n) for c in range(n) if len(half[rank][c]) == n]
        assert sorted(whole) == sorted(((c - 1) % n, c) for c in range(n))
