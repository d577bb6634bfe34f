"""Chapter 07: its figures, and what its text says without a cell of its own."""

import itertools
import re
import time

import notebook_cells
import pytest
import torch
import torch.distributed as dist

from helpers.exercises.chapter_07 import CHAIN, CHUNKS, SIZE
from helpers.figures import links, to_svg
from helpers.launch import RankFailed, run_function
from helpers.link import LINKS, SOURCES, Link
from helpers.process_group import process_group


@pytest.fixture(scope="module")
def notebook():
    return notebook_cells.read(notebook_cells.chapter("07"))


@pytest.fixture(scope="module")
def text(notebook):
    return "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")


def test_the_table_shows_the_presets(text):
    rows = [
        f"| `{name}` | {1e6 * link.latency_s:,.10g} | {link.bandwidth_gb_per_s:g} "
        f"| {links.half_performance_bytes(link) / 1e3:.4g} |"
        for name, link in LINKS.items()
    ]
    shown = [line for line in text.splitlines() if re.match(r"\| `\w+` \|", line)]
    assert shown == rows
    assumed = {name for name, source in SOURCES.items() if "assumed" in source}
    assert assumed == set(list(LINKS)[4:])  # the first four are NCCL's, as the text says


def test_a_message_longer_than_its_room_ends_the_receiving_process(notebook):
    (cell,) = [c for c in notebook.cells if c.source.startswith("def deliver(")]
    names = notebook_cells.namespace(notebook_cells.chapter("07"))
    exec(cell.source[: cell.source.index("a, b =")], names)
    with pytest.raises(RankFailed) as failed:
        run_function(names["deliver"], [([1, 2, 3, 4], 0)], [(2, 0)])
    assert failed.value.exception_type == "SIGABRT"


def overwritten() -> float:
    """Rank 0 writes into a message under way; rank 1 receives afterwards."""
    with process_group(backend="gloo", timeout_s=10) as ranks:
        message = torch.ones(1_000_000)
        if ranks.rank == 0:
            work = dist.isend(message, 1)
            message.fill_(7.0)
            dist.barrier()
            work.wait()
        else:
            dist.barrier()
            dist.recv(message, 0)
        return message[-1].item()


def knows_by_itself(backend) -> bool:
    with process_group(backend=backend, timeout_s=10) as ranks:
        if isinstance(backend, Link):  # a message; else a collective
            step = dist.isend if ranks.rank == 0 else dist.irecv
            work = step(torch.ones(1), 1 - ranks.rank)
        else:
            work = dist.all_reduce(torch.ones(1), async_op=True)
        end_s = time.monotonic() + 5
        while not work.is_completed() and time.monotonic() < end_s:
            time.sleep(0.01)
        known = work.is_completed()
        work.wait()
        return known


def what_works_do() -> tuple[float, bool, bool]:
    return overwritten(), knows_by_itself("gloo"), knows_by_itself(Link(1e-3, 1.0))


@pytest.fixture(scope="module")
def works():
    """Of each rank, in one launch: the message's last number, and what Works know."""
    return list(zip(*run_function(what_works_do), strict=True))


def test_a_message_under_way_takes_what_is_written_into_it(works):
    assert works[0] == (7.0, 7.0)


@pytest.mark.parametrize("row", [1, 2], ids=["collective", "link"])
def test_other_works_know_that_they_are_complete(works, row):
    assert works[row] == (True, True)


def test_the_chain_takes_what_its_solution_says(text):
    in_pieces_ms = 1e3 * (4 - 2 + CHUNKS) * CHAIN.message_s(SIZE / CHUNKS)
    whole_ms = 1e3 * (4 - 1) * CHAIN.message_s(SIZE)
    assert (CHAIN.latency_s, SIZE // 10_000) == (10e-3, 80)
    assert f"8 pieces take 10 × (10 + 10) = {in_pieces_ms:.0f} ms" in text
    assert f"from rank to rank, takes 3 × (10 + 80) = {whole_ms:.0f} ms" in text


@pytest.mark.parametrize("latency_us", [1, 1000])
@pytest.mark.parametrize("bandwidth_gb_per_s", [0.0125, 450.0])
def test_exploration_at_both_ends_of_its_sliders(latency_us, bandwidth_gb_per_s):
    figure = links.two_terms(latency_us, bandwidth_gb_per_s)
    above, below = figure.axes
    half = latency_us * bandwidth_gb_per_s * 1e3
    assert above.lines[-1].get_xdata()[0] == pytest.approx(half)
    sizes, total_us = above.lines[2].get_data()
    assert total_us[0] == pytest.approx(latency_us + sizes[0] / bandwidth_gb_per_s / 1e3)
    share = below.lines[0].get_ydata()
    assert all(a < b for a, b in itertools.pairwise(share))
    assert figure.shows.endswith(links._bytes(half))
    assert len(to_svg(figure, "alt").encode()) < 12_000


def test_measured_points_and_predicted_line_are_drawn():
    link = Link(0.028, 0.025)
    runs = {size: [f * link.message_s(size) for f in (1.3, 1.1, 1.2)] for size in (1e3, 7e5)}
    figure = links.message_time(link, runs, {1e5: [0.05]})
    line, *marks = figure.axes[0].lines
    assert line.get_ydata()[0] == pytest.approx(1e6 * link.message_s(1e3))
    medians = [float(mark.get_ydata()[0]) for mark in marks if mark.get_marker() in "os"]
    expected = [1.2e6 * link.message_s(size) for size in runs]
    assert medians == pytest.approx([*expected, 5e4])
    assert "3 sizes, 3 runs" in figure.shows


def test_figures_draw_themselves_the_same_twice():
    runs = {1e3: [0.03, 0.04], 1e6: [0.05]}
    makers = [
        lambda: links.message_time(Link(0.028, 0.025), runs, {1e5: [0.05]}),
        lambda: links.cases({"a": 1, "b": 2.5}, {"a": [2.2], "b": [5.2, 5.4]}, 2.0, "messages"),
        lambda: links.two_terms(10, 1.25),
    ]
    for make in makers:
        assert to_svg(make(), "alt") == to_svg(make(), "alt")
    drawn = makers[1]().axes[0]
    assert [label.get_text() for label in drawn.get_yticklabels()] == ["a", "b"]
    assert list(drawn.lines[-1].get_xdata()) == [2.6, 2.7]
