"""Chapter 01: its drawing, and what its text says."""

import os
import pickle
from datetime import timedelta

import cloudpickle
import notebook_cells
import pytest

from helpers.figures import launching
from helpers.launch import run_function
from helpers.process_group import TORCHRUN_VARIABLES


@pytest.fixture(scope="module")
def chapter():
    """What the chapter's definition cells define."""
    return notebook_cells.namespace(notebook_cells.chapter("01"))


def test_torchrun_sets_many_variables_the_six_among_them():
    def told():
        return set(os.environ)

    (found, _) = run_function(told)
    assert found >= set(TORCHRUN_VARIABLES)
    assert len(found - set(os.environ)) > 12


def test_a_function_is_pickled_by_name_and_cloudpickled_with_its_code(chapter):
    function = pickle_me
    assert b"said only in the code" not in pickle.dumps(function)
    assert b"WORLD_SIZE" in cloudpickle.dumps(chapter["group_by_hand"])


def pickle_me():
    return "said only in the code"


def test_pytorch_waits_half_an_hour_unless_told():
    from torch.distributed.constants import default_pg_timeout

    assert default_pg_timeout == timedelta(minutes=30)


@pytest.mark.parametrize("processes_per_host", [1, 8])
@pytest.mark.parametrize("hosts", [1, 3])
def test_processes_are_drawn_at_both_ends_of_the_sliders(hosts, processes_per_host):
    figure = launching.processes(hosts, processes_per_host, slots=3)
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts.count("agent") == hosts
    world_size = hosts * processes_per_host
    numbers = [text for text in texts if text.isdigit()]
    local = [str(rank % processes_per_host) for rank in range(world_size)]
    assert sorted(numbers) == sorted([*map(str, range(world_size)), *local])
    assert f"ranks 0 to {world_size - 1}" in figure.shows
    assert sum(text.endswith("not used") for text in texts) == 3 - hosts
    assert tuple(figure.get_size_inches()) == tuple(
        launching.processes(3, 1, slots=3).get_size_inches()
    )


@pytest.mark.parametrize("sizes", [(0, 1), (1, 0), (1, 9), (4, 2)])
def test_what_cannot_be_drawn_is_refused(sizes):
    with pytest.raises(ValueError, match="processes: found"):
        launching.processes(*sizes, slots=3)
