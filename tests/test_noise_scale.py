"""The noise scale: what two norms say, their bias, and the hook that takes them from ranks."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from helpers import compare, launch, problems
from helpers.data_parallel import DistributedDataParallel as OurDDP
from helpers.noise_scale import (
    NoiseScale,
    RankNorms,
    exact,
    micro_batch_norms,
    per_sample_gradients,
    squared_norm,
)
from helpers.process_group import process_group

BATCH = tuple(part[:64] for part in problems.digits(torch.float64).train)
LOSS_SUM, COUNT = problems.classification_loss_sum, problems.count_samples


def make_mlp(seed=0):
    return problems.make_mlp((64, 8, 10), seed=seed, dtype=torch.float64)


def window(size):
    return list(zip(*(part.split(size) for part in BATCH), strict=True))


def test_expected_norms_give_back_trace_and_gradient():
    found = NoiseScale(4, 32)
    found.add(0.5 + 6 / 4, 0.5 + 6 / 32)
    assert found.trace == pytest.approx(6)
    assert found.squared_gradient == pytest.approx(0.5)
    assert found.samples == pytest.approx(12)


def test_parts_are_averaged_before_they_are_divided():
    found = NoiseScale(4, 32)
    for trace, squared in ((2.0, 1.0), (6.0, -0.5), (4.0, 1.0)):
        found.add(squared + trace / 4, squared + trace / 32)
    assert found.samples == pytest.approx(4 / 0.5)
    low, high = found.interval()
    assert low < found.samples < high
    assert found.interval() == (low, high)


def test_a_gradient_lost_in_noise_has_no_noise_scale():
    found = NoiseScale(4, 32, [(1.0, 0.0)])
    assert found.squared_gradient < 0
    assert found.samples == math.inf


def test_unusable_sizes_and_no_pairs_are_refused():
    for small, big in ((8, 8), (32, 4), (0, 8)):
        with pytest.raises(ValueError, match=f"found batches of {small} and {big}"):
            NoiseScale(small, big)
    with pytest.raises(ValueError, match="found no pair of norms"):
        _ = NoiseScale(1, 2).trace


def test_per_sample_gradients_are_single_backwards():
    model = make_mlp()
    rows = per_sample_gradients(model, F.cross_entropy, BATCH)
    for index in (0, 63):
        model.zero_grad()
        LOSS_SUM(model, tuple(part[index : index + 1] for part in BATCH)).backward()
        alone = torch.cat([p.grad.flatten() for p in model.parameters()])
        assert compare.relative_error(rows[index], alone) < 1e-12


def test_brute_force_is_the_noise_scale_of_all_samples():
    model = make_mlp()
    rows = per_sample_gradients(model, F.cross_entropy, BATCH)
    centred = rows - rows.mean(0)
    expected = centred.square().sum() / 63 / rows.mean(0).square().sum()
    assert exact(model, F.cross_entropy, BATCH) == pytest.approx(expected.item(), rel=1e-12)


def test_fewer_pairs_drawn_anew_scatter_more():
    found = NoiseScale(4, 32, [(0.5 + 6 / 4 + e, 0.5 + 6 / 32 - e) for e in (-0.2, 0.0, 0.3)])
    few, many = (sorted(found.redrawn(n)) for n in (1, 50))
    assert len(few) == 200
    assert found.redrawn(1) == found.redrawn(1) != found.redrawn(1, seed=1)
    assert few[180] / few[20] > many[180] / many[20] > 1
    for pairs, count in (([], 1), (found.pairs, 0)):
        with pytest.raises(ValueError, match=f"found {count} of {len(pairs)} pairs"):
            NoiseScale(4, 32, pairs).redrawn(count)


def test_norms_of_micro_batches_leave_the_gradient_of_the_window():
    model, whole = make_mlp(), make_mlp()
    (LOSS_SUM(whole, BATCH) / 64).backward()
    rows = per_sample_gradients(model, F.cross_entropy, BATCH)
    small, big = micro_batch_norms(model, window(16), LOSS_SUM, COUNT)
    means = rows.view(4, 16, -1).mean(1)
    assert small == pytest.approx(means.square().sum(1).mean().item(), rel=1e-12)
    assert big == pytest.approx(rows.mean(0).square().sum().item(), rel=1e-12)
    assert compare.relative_error(compare.gradients(model), compare.gradients(whole)) < 1e-12
    again = micro_batch_norms(model, window(16), LOSS_SUM, COUNT)  # gradients are there by now
    assert again == pytest.approx((small, big), rel=1e-12)
    double = squared_norm(p.grad for p in model.parameters())
    assert double == pytest.approx(4 * big, rel=1e-12)


def test_micro_batches_of_unequal_counts_are_refused():
    uneven = [tuple(part[:3] for part in BATCH), tuple(part[3:4] for part in BATCH)]
    with pytest.raises(ValueError, match=r"count \[3, 1\], expected equal ones"):
        micro_batch_norms(make_mlp(), uneven, LOSS_SUM, COUNT)


def test_without_repetition_the_squared_gradient_is_too_small_by_the_trace_over_n():
    """What the class says of its bias, exactly: all 3 pairs of 3 samples instead of a draw."""
    rows = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0]], dtype=torch.float64)
    trace, squared = rows.var(0).sum().item(), rows.mean(0).square().sum().item()
    pairs = [rows[list(two)].mean(0).square().sum().item() for two in ((0, 1), (0, 2), (1, 2))]
    found = NoiseScale(1, 2, [(rows.square().sum(1).mean().item(), sum(pairs) / 3)])
    assert found.trace == pytest.approx(trace)
    assert found.squared_gradient == pytest.approx(squared - trace / 3)


def on_ranks(cap_mb):
    """Pairs of two steps with torch's and with our class, and the gradient after the second."""
    found = []
    with process_group(timeout_s=20) as ranks:
        mine = problems.split(BATCH, ranks.rank, ranks.world_size)
        for wrap in (TorchDDP, OurDDP):
            model = wrap(make_mlp(), bucket_cap_mb=cap_mb)
            norms = RankNorms(model)
            for _ in range(2):
                model.zero_grad()
                (LOSS_SUM(model, mine) / len(mine[0])).backward()
                pair = norms.pair()
                found.append((pair, compare.gradients(model.module)))
    return found


@pytest.mark.parametrize(("nproc", "cap_mb"), [(2, 1e-4), (4, 25)])
def test_ranks_find_the_norms_of_micro_batches(nproc, cap_mb):
    alone = make_mlp()
    expected = micro_batch_norms(alone, window(64 // nproc), LOSS_SUM, COUNT)
    for found in launch.run_function(on_ranks, cap_mb, nproc_per_node=nproc):
        for pair, grads in found:
            assert pair == pytest.approx(expected, rel=1e-12)
            assert compare.relative_error(grads, compare.gradients(alone)) < 1e-12
