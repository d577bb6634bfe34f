"""helpers.memory: bytes by hand, on real, fake and meta tensors; terms predicted and measured."""

import copy
import gc
import io

import numpy as np
import pytest
import torch
from notebook_cells import chapter, namespace
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from helpers import exercises, problems
from helpers.figures import memory as figures
from helpers.memory import (
    OPTIMIZERS,
    PRECISIONS,
    STATE_PER_PARAMETER,
    LiveBytes,
    MovedBytes,
    Phase,
    gpt_activation_bytes,
    saved_activation_bytes,
    storage_bytes,
    training_bytes,
)


def test_live_and_peak_by_hand():
    with LiveBytes() as memory:
        first = torch.zeros(1000)
        second = first + 1
        assert (memory.live_bytes, memory.peak_bytes) == (8000, 8000)
        del second
        assert (memory.live_bytes, memory.peak_bytes) == (4000, 8000)
        (first * 2).sum().item()
        assert (memory.live_bytes, memory.peak_bytes) == (4000, 8004)
    assert memory.history == [4000, 8000, 4000, 8000, 8004, 4004, 4000]


def test_reset_peak_starts_from_what_is_alive():
    with LiveBytes() as memory:
        kept = torch.zeros(10)
        torch.zeros(1000)
        memory.reset_peak()
        assert memory.peak_bytes == storage_bytes(kept) == 40
        torch.zeros(5)
    assert memory.peak_bytes == 60


def test_marks_note_the_end_and_the_peak_of_each_phase():
    with LiveBytes() as memory:
        memory.mark("nothing")
        kept = torch.zeros(10)
        memory.mark("first")
        torch.zeros(100)
        memory.mark("second")
        memory.mark("idle")
        with pytest.raises(ValueError, match="found a second mark 'first'"):
            memory.mark("first")
    assert memory.phases == {
        "nothing": Phase(0, 0, 0),
        "first": Phase(40, 40, 1),
        "second": Phase(40, 440, 3),
        "idle": Phase(40, 40, 3),
    }
    assert len(kept) == 10


def test_views_and_in_place_operators_are_free():
    with LiveBytes() as memory:
        base = torch.zeros(100, 10)
        views = [
            base.t(),
            base[3:],
            base.view(-1),
            base.detach(),
            base.unbind(1),
            base.expand(2, -1, -1),
        ]
        base.add_(1).mul_(2)
        base.data.copy_(torch.ones(1))
        assert memory.live_bytes == 4000
        del base
        assert memory.live_bytes == 4000
        del views
        assert memory.live_bytes == 0


def test_a_storage_from_before_is_not_counted_nor_its_views():
    before = torch.zeros(1000, requires_grad=True)
    with LiveBytes() as memory:
        view = before.t()
        before.detach().add_(1)
        assert (memory.live_bytes, memory.peak_bytes) == (0, 0)
        double = before * 2
        assert memory.live_bytes == 4000
    del before, view, double
    assert memory.live_bytes == 0


def test_include_counts_what_was_there_once():
    model = nn.Linear(10, 10)
    model.tied = model.weight
    optimizer = OPTIMIZERS["SGD+momentum"](model.parameters())
    model(torch.ones(1, 10)).sum().backward()
    optimizer.step()
    memory = LiveBytes().include(model, optimizer).include(model.weight, [model.bias.grad])
    assert memory.live_bytes == 440 + 440 + 40
    assert memory.live_bytes == storage_bytes(model, optimizer, model.bias.grad)
    with memory:
        assert model.weight.t().untyped_storage().nbytes() == 400
    assert memory.live_bytes == 920
    del model, optimizer
    gc.collect()
    assert (memory.live_bytes, memory.peak_bytes) == (0, 920)


@pytest.mark.parametrize("thing", ["text", 3, object()])
def test_what_holds_no_tensors_is_refused(thing):
    with pytest.raises(TypeError, match=f"found {type(thing).__name__}, expected a tensor"):
        storage_bytes(thing)
    with pytest.raises(TypeError, match="expected a tensor"):
        LiveBytes().include(thing)


def test_storage_bytes_takes_iterators_and_nests():
    model = nn.Linear(3, 2)
    assert storage_bytes(model.parameters()) == storage_bytes(model.state_dict()) == 32
    assert storage_bytes([{"a": (model.weight, None)}], model.weight[1:]) == 24
    assert storage_bytes() == storage_bytes(None, []) == 0


def test_tensors_made_out_of_the_dispatchers_sight_count():
    data = bytearray(16)
    with LiveBytes() as memory:
        tensors = [torch.tensor([1.0, 2.0])]
        assert memory.live_bytes == 8
        tensors.append(copy.deepcopy(nn.Linear(2, 1)))
        assert memory.live_bytes == 8 + 12
        file = io.BytesIO()
        torch.save(tensors[0], file)
        file.seek(0)
        tensors.append(torch.load(file))
        assert memory.live_bytes == 20 + 8
        tensors.append(torch.from_numpy(torch.zeros(4).numpy().copy()))
        assert memory.live_bytes == 28 + 16
    assert len(data) == 16
    del tensors
    assert memory.live_bytes == 0


def test_resize_and_out_change_a_size():
    before = torch.zeros(10)
    with LiveBytes() as memory:
        grown = torch.zeros(10)
        grown.resize_(100)
        assert memory.live_bytes == 400
        torch.add(grown, 1, out=(result := torch.empty(0)))
        assert memory.live_bytes == 800
        before.resize_(1000)
        assert memory.live_bytes == 800
    assert len(result) == 100


def test_nested_contexts_each_count_what_is_born_inside():
    with LiveBytes() as outer:
        first = torch.zeros(10)
        with LiveBytes() as inner:
            second = torch.zeros(100)
            first.add_(1)
        third = torch.zeros(1000)
    assert (inner.live_bytes, outer.live_bytes) == (400, 4440)
    del first, second, third
    assert (inner.live_bytes, outer.live_bytes) == (0, 0)


def test_a_context_may_be_opened_again_and_inside_itself():
    memory = LiveBytes()
    with memory:
        first = torch.zeros(10)
    uncounted = torch.zeros(10)
    with memory, memory:
        second = torch.zeros(10)
    assert memory.live_bytes == 80
    del first, second, uncounted
    assert (memory.live_bytes, memory.peak_bytes) == (0, 80)


def test_an_exception_inside_leaves_the_meter_right():
    kept = []

    def fail(memory):
        with memory:
            kept.append(torch.zeros(10))
            return kept[0] + torch.zeros(3)

    memory = LiveBytes()
    with pytest.raises(RuntimeError, match="size"):
        fail(memory)
    torch.zeros(50)
    gc.collect()  # the traceback held the frame, and with it the three zeros
    assert memory.live_bytes == storage_bytes(kept) == 40


def test_a_storage_counts_at_its_dtypes_size():
    with LiveBytes() as memory:
        tensors = [
            torch.zeros(8, dtype=dtype) for dtype in (torch.bfloat16, torch.float64, torch.bool)
        ]
    assert memory.live_bytes == 16 + 64 + 8 == storage_bytes(tensors)


def test_sparse_tensors_are_left_out():
    embedding = nn.Embedding(10, 4, sparse=True)
    with LiveBytes():
        embedding(torch.tensor([1, 2])).sum().backward()
    assert embedding.weight.grad.is_sparse


def one_step(make_model, optimizer_name, tokens, steps=1, memory=None):
    """Train; return live bytes after making, and live and peak of each forward, backward, step."""
    memory = memory or LiveBytes()
    with memory:
        model = make_model()
        optimizer = OPTIMIZERS[optimizer_name](model.parameters())
        numbers = [memory.live_bytes]
        for _ in range(steps):
            loss = problems.token_loss_sum(model, (tokens, tokens))
            numbers.append((memory.live_bytes, memory.peak_bytes))
            loss.backward()
            numbers.append((memory.live_bytes, memory.peak_bytes))
            optimizer.step()
            numbers.append((memory.live_bytes, memory.peak_bytes))
    return numbers, memory.history


@pytest.mark.parametrize("checkpoint", [False, True])
def test_real_fake_and_meta_tensors_give_the_same_curve(checkpoint):
    def make_model():
        return problems.GPT(width=16, context=8, depth=2, checkpoint=checkpoint)

    tokens = torch.zeros(3, 8, dtype=torch.int64)
    real = one_step(make_model, "AdamW", tokens)
    assert one_step(make_model, "AdamW", tokens) == real
    with FakeTensorMode():
        assert one_step(make_model, "AdamW", torch.zeros(3, 8, dtype=torch.int64)) == real
    with torch.device("meta"):
        meta = one_step(make_model, "AdamW", torch.zeros(3, 8, dtype=torch.int64))
    assert meta[0][-1] == real[0][-1]


def test_nothing_is_left_to_the_garbage_collector():
    def make_model():
        return problems.GPT(width=16, context=8, depth=2, checkpoint=True)

    tokens = torch.zeros(3, 8, dtype=torch.int64)
    gc.disable()
    try:
        without = one_step(make_model, "AdamW", tokens, steps=3)
    finally:
        gc.enable()
    gc.collect()
    assert one_step(make_model, "AdamW", tokens, steps=3) == without


@pytest.mark.parametrize("name", STATE_PER_PARAMETER)
def test_each_term_is_predicted_within_two_percent(name):
    with LiveBytes() as memory:
        model = problems.make_mlp()
        num_parameters = sum(p.numel() for p in model.parameters())
        predicted = training_bytes(num_parameters, name)
        assert memory.live_bytes == predicted.parameters == storage_bytes(model)
        optimizer = OPTIMIZERS[name](model.parameters())
        loss = problems.classification_loss_sum(model, (torch.zeros(4, 64), torch.zeros(4).long()))
        loss.backward()
        assert storage_bytes([p.grad for p in model.parameters()]) == predicted.gradients
        optimizer.step()
        del loss
        measured = memory.live_bytes
    assert storage_bytes(optimizer) == pytest.approx(predicted.optimizer_state, rel=2e-2)
    assert measured == pytest.approx(predicted.total, rel=2e-2)


def test_scratch_of_adamw_is_all_parameters_with_foreach_and_none_fused():
    scratch = {}
    for how in ("foreach", "fused"):
        memory = LiveBytes()
        with FakeTensorMode(), memory:
            model = problems.make_gpt()
            optimizer = torch.optim.AdamW(model.parameters(), **{how: True})
            for _ in range(2):
                sum(parameter.sum() for parameter in model.parameters()).backward()
                memory.reset_peak()
                optimizer.step()
                scratch[how] = memory.peak_bytes - memory.live_bytes
                optimizer.zero_grad()
            parameters = storage_bytes(model)
    assert scratch["foreach"] == pytest.approx(parameters, rel=2e-2)
    assert scratch["fused"] < 0.05 * parameters


def test_saved_activations_of_an_mlp_by_hand():
    model = problems.make_mlp((64, 128, 128, 10))
    everything = torch.zeros(100, 64)
    labels = torch.zeros(100, dtype=torch.int64)
    for batch_size in (1, 7):
        batch = (everything[:batch_size], labels[:batch_size])
        saved = saved_activation_bytes(problems.classification_loss_sum, model, batch)
        # Two ReLU results, the log-softmax, and the loss's total weight (one number).
        assert saved == 4 * (batch_size * (128 + 128 + 10) + 1)


def test_saved_activations_agree_with_live_bytes():
    model = problems.GPT(width=16, context=8)
    tokens = torch.zeros(3, 8, dtype=torch.int64)
    saved = saved_activation_bytes(problems.token_loss_sum, model, (tokens, tokens))
    with LiveBytes() as memory:
        loss = problems.token_loss_sum(model, (tokens, tokens))
        assert memory.live_bytes == saved + storage_bytes(loss)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(
    ("batch_size", "options"),
    [
        (3, {}),
        (1, {"width": 32, "heads": 2, "depth": 1, "context": 16}),
        (2, {"width": 48, "heads": 8, "depth": 5, "context": 64, "vocabulary_size": 50_257}),
    ],
)
def test_the_formula_for_a_gpt_is_exact(batch_size, options, autocast):
    def forward(model, batch):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return problems.token_loss_sum(model, batch)

    with FakeTensorMode():
        model = problems.make_gpt(**options)
        tokens = torch.zeros(batch_size, model.context, dtype=torch.int64)
        saved = saved_activation_bytes(forward, model, (tokens, tokens))
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    casts = 2 * sum(module.weight.numel() for module in linear) if autocast else 0
    # The positions (int64) and the loss's total weight are not worth a term.
    rest = 8 * model.context + 4
    assert saved == gpt_activation_bytes(batch_size, **options, autocast=autocast) + casts + rest


@pytest.mark.parametrize(("options", "grows"), [({}, False), ({"width": 512, "context": 8}, True)])
def test_autocast_shrinks_a_step_or_lets_it_grow(options, grows):
    peaks = []
    for enabled in (False, True):
        with FakeTensorMode(), LiveBytes() as memory:
            model = problems.make_gpt(**options)
            tokens = torch.zeros(1, model.context, dtype=torch.int64)
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                loss = problems.token_loss_sum(model, (tokens, tokens))
            peaks.append(memory.peak_bytes)
            loss.backward()
            assert {parameter.grad.dtype for parameter in model.parameters()} == {torch.float32}
    assert (peaks[1] > peaks[0]) is grows


def test_the_chapter_counts_activations_as_the_helper_does():
    by_hand = namespace(chapter("02"))["gpt_activation_bytes"]
    for options in ({}, {"width": 48, "depth": 3, "heads": 6, "context": 7, "vocabulary_size": 11}):
        assert by_hand(5, **options) == gpt_activation_bytes(5, **options)


def test_saved_activations_survive_an_exception():
    with pytest.raises(ZeroDivisionError):
        saved_activation_bytes(lambda: 1 / 0)
    assert saved_activation_bytes(lambda x: x.exp(), torch.ones(3, requires_grad=True)) == 12


def test_the_formula_of_the_papers():
    seven_billion = training_bytes(7_000_000_000)
    assert seven_billion.total == 112_000_000_000
    assert training_bytes(7_000_000_000, precision="master weights").total == 112_000_000_000
    totals = [training_bytes(1, name).total for name in STATE_PER_PARAMETER]
    assert totals == [8, 12, 12, 12, 16]
    assert {name: training_bytes(1, precision=name).total for name in PRECISIONS} == {
        "float32": 16,
        "autocast": 18,
        "master weights": 16,
        "bfloat16": 8,
    }
    twice = training_bytes(10, "SGD", activation_bytes=5, gradient_copies=2)
    assert (twice.total, twice.peak) == (40 + 80 + 5, 40 + 80)
    assert training_bytes(10, "AdamW", activation_bytes=50).peak == 40 + 80 + 50
    assert OPTIMIZERS.keys() == STATE_PER_PARAMETER.keys()


@pytest.mark.parametrize(("optimizer", "precision"), [("Adam?", "float32"), ("SGD", "fp8")])
def test_unknown_names_are_refused(optimizer, precision):
    with pytest.raises(ValueError, match="expected one of"):
        training_bytes(1, optimizer, precision)


@pytest.mark.parametrize("billion_parameters", [1.5, 13])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_the_sliders_ends_draw_the_total(optimizer, precision, billion_parameters):
    svg = figures.before_activations(optimizer, precision, billion_parameters)._repr_svg_()
    total = training_bytes(int(billion_parameters * 1e9), optimizer, precision).total
    assert f">{total / 1e9:.0f} GB<" in svg
    assert svg == figures.before_activations(optimizer, precision, billion_parameters)._repr_svg_()


def test_a_step_is_drawn_up_to_its_last_mark():
    with LiveBytes() as memory:
        kept = torch.zeros(1000)
        memory.mark("one")
        memory.mark("nothing")
        torch.zeros(500)
        memory.mark("two")
    del kept
    figure = figures.step_curve(memory)
    assert figure.axes[0].get_xlim() == (0, 3)
    assert [text.get_text() for text in figure.axes[0].texts] == ["one", "two"]


@pytest.mark.parametrize("ended", [False, True])
def test_a_bar_ends_pale_where_gradients_and_activations_never_meet(ended):
    terms = {"row": training_bytes(7_000_000_000, activation_bytes=35_000_000_000)}
    figure = figures.against_cards(terms, {"row": 120_000_000_000} if ended else None)
    bars = [bar for bar in figure.axes[0].patches if bar.get_width()]
    pale = [bar.get_width() for bar in bars if bar.get_facecolor()[:3] == (1.0, 1.0, 1.0)]
    assert pale == ([pytest.approx(28)] if ended else [])
    assert sum(bar.get_width() for bar in bars) == pytest.approx(terms["row"].total / 1e9)


def test_sizes_are_drawn_in_two_panels():
    rows = [
        (redo, depth, batch_size, depth * batch_size, depth * batch_size)
        for redo in (False, True)
        for depth, batch_size in ((1, 8), (2, 8), (2, 1))
    ]
    above, below = figures.against_size(rows).axes
    assert [list(line.get_xdata()) for line in above.lines] == [[1, 2]] * 4
    assert [list(line.get_xdata()) for line in below.lines] == [[1, 8]] * 4


def test_a_check_takes_the_numbers_of_numpy():
    def adafactor(shapes):
        return np.int64(sum(4 * sum(shape) + 4 for shape in shapes))

    assert exercises.check("02-adafactor", adafactor)


# -- bytes moved -------------------------------------------------------------------------------


def test_moved_bytes_by_hand():
    total, gradient = torch.zeros(1000), torch.ones(1000).bfloat16()
    out = torch.empty(1000)
    with MovedBytes() as moved:
        total.add_(gradient.float() * 0.5)  # 2 + 4, 4 + 4, 4 + 4 + 4
    assert (moved.bytes, moved.launches) == (26_000, 3)
    with MovedBytes() as moved:
        total.view(10, 100)[2:].t()
        torch.empty_like(total.new_empty(5))
        assert moved.bytes == moved.launches == 0, "views and reserved memory move nothing"
        torch.cat([total, total])
        torch.mul(total, 2, out=out)
    assert (moved.bytes, moved.launches) == (16_000 + 2 * 4_000, 2)
    with MovedBytes() as moved, torch.no_grad():
        torch.ones(4, 8, 16) @ torch.ones(16, 16)  # as a matrix of 32 rows
    assert (moved.bytes, moved.launches) == (2 * 2_048 + 1_024 + 2_048 + 1_024, 3)
