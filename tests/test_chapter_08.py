"""Chapter 08: its small versions under wrong twins, and what its text says of steps and costs."""

import notebook_cells
import pytest
import torch
import torch.distributed as dist
from exercise_mutants import chapter_08

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


def test_the_doubling_on_the_page_sums_as_the_helpers_does():
    """The block of code in the text, for a power of two."""
    cells = notebook_cells.read(notebook_cells.chapter("08")).cells
    (text,) = [c.source for c in cells if "```python\nfor d in distances" in c.source]
    block = text.split("```python\n")[1].split("```")[0]

    def sums():
        with process_group(timeout_s=10) as ranks:
            mine = torch.rand(1001, generator=torch.manual_seed(ranks.rank))
            theirs = mine.clone()
            names = {"dist": dist, "rank": ranks.rank, "distances": [1, 2]}
            names |= {"tensor": mine, "part": torch.empty_like(mine)}
            exec(block, names)  # the page's own text
            collectives.all_reduce_doubling(theirs)
            dist.barrier()
            return torch.equal(mine, theirs)

    assert all(run_function(sums, nproc_per_node=4))


@pytest.mark.parametrize(("world_size", "agree"), [(2, True), (3, False)])
def test_a_ring_of_whole_tensors_leaves_other_bits_on_each_rank(world_size, agree):
    passes_whole_tensors = chapter_08.passes_whole_tensors

    def sums():
        with process_group(timeout_s=10) as ranks:
            tensor = torch.rand(1000, generator=torch.manual_seed(ranks.rank))
            passes_whole_tensors(tensor)
            dist.barrier()
            return tensor

    first, *others = run_function(sums, nproc_per_node=world_size)
    assert all(torch.equal(first, each) == agree for each in others)
    assert all(torch.allclose(first, each) for each in others)


def test_which_ways_agree_bit_for_bit_on_four_ranks():
    """Tree and doubling add (0 + 1) + (2 + 3), halving-doubling (0 + 2) + (1 + 3)."""
    names = ("tree", "doubling", "halving_doubling")

    def sums():
        with process_group(timeout_s=10) as ranks:
            mine = torch.rand(1000, generator=torch.manual_seed(ranks.rank))
            found = [mine.clone() for _ in names]
            for name, tensor in zip(names, found, strict=True):
                collectives.all_reduce(tensor, algorithm=name)
            dist.barrier()
            return mine, found

    by_rank = run_function(sums, nproc_per_node=4)
    a, b, c, d = (mine for mine, _ in by_rank)
    tree, doubling, halving_doubling = by_rank[0][1]
    assert torch.equal(tree, (a + b) + (c + d))
    assert torch.equal(doubling, tree)
    assert torch.equal(halving_doubling, (a + c) + (b + d))
    assert not torch.equal(halving_doubling, tree)


def test_six_ranks_fold_two_in():
    """What the table's note and the solution say of a world that is no power of two."""
    size = 6 * 4 * 1000
    for name in ("doubling", "halving_doubling"):
        six, four = (cost_model.critical_path(name, size, n) for n in (6, 4))
        assert six.messages == four.messages + 2
        assert six.sent_bytes == four.sent_bytes + 2 * size
    assert six.sent_bytes == 3.5 * size
    assert cost_model.critical_path("ring", size, 6).sent_bytes / size == pytest.approx(
        1.67, abs=0.01
    )


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
    for step in steps["tree"][2:4]:  # its top
        assert len({rank for t in step for rank in (t.sender, t.receiver)}) == 2
    for n in (3, 4):  # after the first half of a ring, chunk c is whole at rank c - 1, only there
        half = holdings("ring", n)[n - 1]
        whole = [(rank, c) for rank in range(n) for c in range(n) if len(half[rank][c]) == n]
        assert sorted(whole) == sorted(((c - 1) % n, c) for c in range(n))
