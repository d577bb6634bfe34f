"""Chapter 12: its loops and its small no_sync beside the helper and torch; figures; torch's limits.

What the book says of torch 2.13 (static_graph with no_sync) is recorded here: a test that fails
when it changes tells that the text has to.
"""

from contextlib import contextmanager, nullcontext

import notebook_cells
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP
from torch.nn.utils import parameters_to_vector

from helpers import compare, launch, problems
from helpers.accumulate import accumulate_gradients, split_batch, windows
from helpers.figures import no_sync as figures
from helpers.figures import to_svg
from helpers.process_group import process_group
from helpers.traffic import count_traffic

SPREAD = {"median_s": 0.1, "p10_s": 0.09, "p90_s": 0.12}


@pytest.fixture(scope="module")
def chapter():
    """The names of the chapter's definitions, and of the cell with its small no_sync."""
    path = notebook_cells.chapter("12")
    names = notebook_cells.namespace(path)
    cells = notebook_cells.code_cells(notebook_cells.read(path))
    (small,) = [cell for cell in cells if cell.source.startswith("@contextmanager\ndef no_sync")]
    names["show"] = lambda *loops, wrap: None
    notebook_cells.execute(small, names, "small")
    return names


class WithoutFinally:
    """The context manager that the text warns of."""

    @contextmanager
    def no_sync(self):
        before, self.is_syncing = self.is_syncing, False
        yield
        self.is_syncing = before


def test_the_small_version_is_the_helper_and_torch(chapter):
    small, ours = chapter["DataParallelQuiet"], chapter["OurDDP"]
    forgetful = type("Forgetful", (WithoutFinally, small), {})
    loops = [chapter[name] for name in ("sync_each", "around_both", "interrupted")]
    pairs = [(loop, wrap) for loop in loops for wrap in (small, ours, TorchDDP)]
    pairs.append((chapter["interrupted"], forgetful))
    by_rank = launch.run_function(chapter["on_ranks"], pairs, nproc_per_node=2)
    model = chapter["make_mlp"]()
    (chapter["loss_sum"](model, chapter["BATCH"]) / 64).backward()
    right = compare.gradients(model)
    for (loop, wrap), *found in zip(pairs, *by_rank, strict=True):
        times = 1 if loop is chapter["around_both"] else 4
        # the flat class asks first, by a small all-reduce, which gradients are there
        expected = {forgetful: 0, small: 2 * times}.get(wrap, times)
        for traffic, grads in found:
            assert traffic.collectives["all_reduce"] == expected, (loop.__name__, wrap)
            error = compare.relative_error(grads, right)
            assert (error < 1e-12) == (wrap is not forgetful), (loop.__name__, wrap)


def what_static_graph_does():
    """What torch's class makes of static_graph=True and no_sync: a text for each of three."""
    batch = tuple(x[:32] for x in problems.digits(torch.float64).train)
    found = {}
    with process_group(timeout_s=10):
        for first in ("quiet", "synchronised", "a graph without no_sync"):
            module = problems.make_mlp((64, 8, 10), dtype=torch.float64)
            model = TorchDDP(module, static_graph=first != "a graph without no_sync")
            try:
                if first == "synchronised":
                    model(batch[0]).sum().backward()
                    model.zero_grad()
                with count_traffic() as traffic:
                    for i, (images, _) in enumerate(split_batch(batch, 8)):
                        with model.no_sync() if i < 3 else nullcontext():
                            model(images).sum().backward()
                alone = problems.make_mlp((64, 8, 10), dtype=torch.float64)
                alone(batch[0]).sum().backward()
                off = compare.relative_error(compare.gradients(module), compare.gradients(alone))
                found[first] = f"right: {off < 1e-12}, {traffic.collectives['all_reduce']}"
            except RuntimeError as error:
                found[first] = "INTERNAL ASSERT" * ("INTERNAL ASSERT" in str(error))
    return found


def test_static_graph_with_no_sync_is_as_the_chapter_says():
    (found,) = launch.run_function(what_static_graph_does, nproc_per_node=1)
    assert found == {
        "quiet": "INTERNAL ASSERT",
        "synchronised": "right: True, 1",
        "a graph without no_sync": "right: True, 1",
    }, "torch has changed: chapter 12 says otherwise"


def epochs():
    """The loop of exercise 12-epoch, as it stands and mended: parameters after each update."""
    data = tuple(x[:40] for x in problems.digits(torch.float64).train)
    states = {False: [], True: []}
    with process_group(timeout_s=10) as ranks:
        pieces = split_batch(problems.split(data, ranks.rank, ranks.world_size), 2)
        for mended, after in states.items():
            model = TorchDDP(problems.make_mlp((64, 8, 10), dtype=torch.float64))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for i, (images, _) in enumerate(pieces):
                is_last = (i + 1) % 4 == 0 or (mended and i + 1 == len(pieces))
                with nullcontext() if is_last else model.no_sync():
                    model(images).logsumexp(1).sum().backward()
                if is_last or i + 1 == len(pieces):
                    optimizer.step()
                    optimizer.zero_grad()
                    after.append(parameters_to_vector(model.parameters()).detach())
    return states


def test_the_end_of_an_epoch_parts_replicas_unless_it_is_synchronised():
    first, second = launch.run_function(epochs, nproc_per_node=2)
    for mended, after in first.items():
        equal = [torch.equal(a, b) for a, b in zip(after, second[mended], strict=True)]
        assert equal == [True, True, mended]


def messages(loops: dict) -> dict[str, int]:
    """All-reduces of an epoch of 10 micro-batches in windows of 4, five buckets: by loop."""
    counts = {}
    with process_group(timeout_s=10):
        layers = [nn.Linear(10, 10, bias=False) for _ in range(5)]
        model = TorchDDP(nn.Sequential(*layers).double(), bucket_cap_mb=1e-5)
        batches = [(torch.ones(2, 10).double(), torch.zeros(2).long())] * 10
        for name, loop in {"settle": loops["each"], **loops}.items():
            with count_traffic() as traffic:
                for window in windows(batches, 4):
                    loop(model, window, 1.0)
            counts[name] = traffic.collectives["all_reduce"]
    return counts


def with_helper(model, window, factor):
    accumulate_gradients(model, window, problems.classification_loss_sum, problems.count_samples)


def test_the_messages_of_exercise_12_messages(chapter):
    names = {"each": "sync_each", "backward": "around_backward", "both": "around_both"}
    loops = {key: chapter[name] for key, name in names.items()} | {"helper": with_helper}
    (found,) = launch.run_function(messages, loops, nproc_per_node=1)
    del found["settle"]
    assert found == {"each": 50, "backward": 50, "both": 15, "helper": 21}


def test_spans_of_a_window_on_paper():
    each = figures.window_spans([True, True], 1, 2, 2.5)
    assert each.sending == [(3, 2.5), (8.5, 2.5)]
    assert each.end_s == 11
    quiet = figures.window_spans([False, True], 1, 2, 2.5)
    assert quiet.backward == [(1, 2), (4, 2)]
    assert quiet.end_s == 8.5
    overlapped = figures.window_spans([True], 1, 2, 0.5, num_buckets=4)
    assert overlapped.sending == [(1.5, 0.5), (2.0, 0.5), (2.5, 0.5), (3.0, 0.5)]
    assert overlapped.end_s == 3.5


@pytest.mark.parametrize("link", ["ethernet_100g", "ethernet_10g", "ethernet_1g"])
def test_the_exploration_at_both_ends_of_its_sliders(link):
    for micro_batches in (1, 8):
        for ranks in (2, 64):
            shown = figures.window_on_link(micro_batches, ranks, link).shows
            each, quiet = (float(text.split()[-1]) for text in shown.split(","))
            assert quiet == each if micro_batches == 1 else quiet > each
            if link == "ethernet_100g":
                assert quiet < 1.1 * each
            if (micro_batches, ranks, link) == (8, 64, "ethernet_1g"):
                assert 6.3 < quiet / each < 6.5


def test_every_figure_draws_itself_the_same_twice():
    measured = {"a link": {1: SPREAD, 2: SPREAD}}
    makers = [
        lambda: figures.three_loops(4),
        lambda: figures.window_on_link(4, 8, "ethernet_10g"),
        lambda: figures.errors_by_divisor({"N": {2: [0.5, 1e-16], 4: [0.75]}, "none": {2: [1.0]}}),
        lambda: figures.live_bytes({"torch, None": [1.0, 2.1, 2.0], "ours, None": [1.0, 1.1, 1.0]}),
        lambda: figures.samples_per_second(
            measured, {"a link": {1: 0.1, 2: 0.1}}, {"a link": 0.03}
        ),
        lambda: figures.same_loss({"digits": {1: [2.0, 1.0], 2: [2.0, 1.0 + 1e-15]}}),
    ]  # fmt: skip
    for make in makers:
        assert to_svg(make(), "alt") == to_svg(make(), "alt")


def test_differences_of_curves_only_grow_and_exact_ones_are_drawn():
    figure = figures.same_loss({"digits": {1: [2.0, 1.0, 1.0], 2: [2.0, 1.5, 1.0]}})
    assert list(figure.axes[1].lines[0].get_ydata()) == [1e-17, 0.5, 0.5]


def test_last_bits_of_an_error_are_not_drawn():
    def points(errors):
        return list(figures.errors_by_divisor({"N": {2: errors}}).axes[0].lines[0].get_xdata())

    assert points([0.5, 1e-16]) == points([0.5 + 1e-14, 3e-16]) == [0.5, 1e-5]


def test_a_window_without_micro_batches_is_refused():
    with pytest.raises(ValueError, match="found 0, expected 1 micro-batch or more"):
        figures.three_loops(0)
