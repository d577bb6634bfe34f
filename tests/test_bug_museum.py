"""The bugs of the museum's table that no other test shows.

In each test of a bug the fault comes first and is seen, then the right way, which is exact.
"""

import functools
import socket
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState
from torch.nn.parallel import DistributedDataParallel as TorchDDP
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, DistributedSampler

from helpers.accumulate import accumulate_gradients, windows
from helpers.compare import assert_replicas_equal, gradients, relative_error
from helpers.cost_model import critical_path
from helpers.launch import run_function
from helpers.memory import LiveBytes, storage_bytes
from helpers.process_group import TORCHRUN_VARIABLES, process_group
from helpers.traffic import count_traffic

# bugs of one process


def samples(num_samples: int, num_features: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(num_samples, num_features, generator=generator, dtype=torch.float64)


def layer(seed: int = 0) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(3, 1, bias=False).double()


def loss_sum(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    return model(inputs).square().sum()


def test_clipping_before_unscale_sees_the_scaled_gradient():
    norms = {}
    for unscales in (False, True):
        model, scaler = layer(), torch.amp.GradScaler("cpu", init_scale=1024.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler.scale(loss_sum(model, samples(4))).backward()
        if unscales:
            scaler.unscale_(optimizer)
        norms[unscales] = nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
    loss_sum(reference := layer(), samples(4)).backward()
    assert norms[False] == pytest.approx(1024 * norms[True], rel=1e-6)
    assert norms[True] == pytest.approx(reference.weight.grad.norm().item(), rel=1e-12)


def test_a_log_that_adds_the_means_is_as_many_times_too_large():
    model, window = layer(), samples(8).split(2)
    mean = loss_sum(model, samples(8)).item() / 8
    added = sum(loss_sum(model, part).item() / 2 for part in window)
    assert added == pytest.approx(4 * mean, rel=1e-12)
    assert accumulate_gradients(model, window, loss_sum, len) == pytest.approx(mean, rel=1e-12)


def moved(make_optimizer, divisor: int, max_norm: float = float("inf")) -> torch.Tensor:
    """How far a window of eight micro-batches moves the parameters."""
    model = layer()
    before = model.weight.detach().clone()
    for part in samples(16).split(2):
        (loss_sum(model, part) / 2 / divisor).backward()
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    make_optimizer(model.parameters()).step()
    return model.weight.detach() - before


def test_without_the_division_sgd_steps_as_many_times_too_far_and_adam_hides_it():
    sgd = functools.partial(torch.optim.SGD, lr=0.01)
    adam = functools.partial(torch.optim.Adam, lr=0.01)
    assert relative_error(moved(sgd, 1), 8 * moved(sgd, 8)) < 1e-12
    assert relative_error(moved(adam, 1), moved(adam, 8)) < 1e-6
    assert relative_error(moved(sgd, 1, 0.1), moved(sgd, 8, 0.1)) < 1e-4  # so does clipping
    model = layer()
    (loss_sum(model, samples(16)) / 16).backward()
    assert relative_error(moved(sgd, 8), -0.01 * model.weight.grad) < 1e-12


def test_a_boundary_that_counts_from_zero_steps_on_one_micro_batch():
    waiting, found = [], []
    for index in range(10):
        waiting.append(index)
        if index % 4 == 0:
            found.append(len(waiting))
            waiting.clear()
    assert (found, waiting) == ([1, 4, 4], [9])
    assert [len(window) for window in windows(range(10), 4)] == [4, 4, 2]


def rates_of(steps_per_update: int, num_updates: int) -> list[float]:
    """The learning rate after each update of a warm-up over two and a cosine over eight."""
    optimizer = torch.optim.SGD(layer().parameters(), lr=1.0)
    warm_up = lr_scheduler.LinearLR(optimizer, 0.5, total_iters=2)
    cosine = lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
    scheduler = lr_scheduler.SequentialLR(optimizer, [warm_up, cosine], milestones=[2])
    found = []
    for _ in range(num_updates):
        optimizer.step()
        for _ in range(steps_per_update):
            scheduler.step()
        found.append(optimizer.param_groups[0]["lr"])
    return found


def test_a_scheduler_that_counts_micro_batches_ends_its_warm_up_early_and_its_cosine_comes_back():
    once, twice = rates_of(1, 10), rates_of(2, 10)
    assert once[:2] == pytest.approx([0.75, 1.0])
    assert twice[0] == pytest.approx(1.0)  # the warm-up is over
    assert once == pytest.approx(sorted(once[:2]) + sorted(once[2:], reverse=True))
    assert twice[4] == pytest.approx(0.0, abs=1e-12)
    assert twice[8] == pytest.approx(1.0)  # at its end it should be 0, and is as at the start
    assert once[9] == pytest.approx(0.0, abs=1e-12)


def test_an_update_that_the_loss_scaler_skips_is_none_for_the_scheduler():
    model, scaler = layer(), torch.amp.GradScaler("cpu", init_scale=4.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = lr_scheduler.ConstantLR(optimizer)
    updates, batches = [], [samples(4), samples(4) * torch.inf, samples(4)]
    optimizer.register_step_post_hook(lambda *_: updates.append(None))
    for batch in batches:
        optimizer.zero_grad()
        scaler.scale(loss_sum(model, batch)).backward()
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= scale:
            scheduler.step()
    assert len(updates) == scheduler.last_epoch == 2 < len(batches)


def test_batch_norm_moves_its_statistics_with_each_micro_batch_and_refuses_one_sample():
    for num_parts in (1, 4):
        norm = nn.BatchNorm1d(3).double()
        for part in samples(16).chunk(num_parts):
            norm(part)
        assert norm.num_batches_tracked == num_parts
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        norm(samples(1))


def test_without_set_epoch_torchs_sampler_deals_one_order_for_ever():
    sampler = DistributedSampler(range(16), 2, 0)
    first = list(sampler)
    assert list(sampler) == first
    sampler.set_epoch(1)
    assert list(sampler) != first


class Outer(nn.Module):
    """A model that has a part called `module` itself, as a wrapped one has."""

    def __init__(self):
        super().__init__()
        self.module = layer(seed=1)

    def forward(self, inputs):
        return self.module(inputs)


def test_keys_with_a_prefix_load_nothing_in_silence_and_replace_takes_too_many():
    wrapped = nn.ModuleDict({"module": Outer()}).state_dict()
    assert list(wrapped) == ["module.module.weight"]
    fresh = Outer()
    before = nn.init.zeros_(fresh.module.weight).clone()
    for lost in (wrapped, {key.replace("module.", ""): x for key, x in wrapped.items()}):
        with pytest.raises(RuntimeError, match="Missing key"):
            fresh.load_state_dict(lost)
        fresh.load_state_dict(lost, strict=False)
        assert torch.equal(fresh.module.weight, before)
    fresh.load_state_dict({key.removeprefix("module."): x for key, x in wrapped.items()})
    assert torch.equal(fresh.module.weight, Outer().module.weight)


def exchanged(num_bytes: int) -> list[int]:
    """Both ends of a connection send so many bytes, then receive as many."""

    def one_end(end):
        end.settimeout(0.2)
        end.sendall(bytes(num_bytes))
        return len(end.recv(num_bytes, socket.MSG_WAITALL))

    one, other = socket.socketpair()
    # Both stay open until both have ended: one that closes first would break the other's pipe.
    with one, other, ThreadPoolExecutor() as threads:
        return list(threads.map(one_end, (one, other)))


def test_where_everyone_sends_first_small_messages_pass_and_large_ones_stand_still():
    assert exchanged(1_000) == [1_000, 1_000]
    with pytest.raises(TimeoutError):
        exchanged(10_000_000)


def sizes_of_a_step(make_optimizer) -> list[float]:
    """What is alive after each backward and each step of two, in sizes of the model."""
    model = nn.Linear(256, 256, bias=False)
    found, inputs = [], torch.zeros(1, 256)
    with LiveBytes() as live:
        optimizer = make_optimizer(model.parameters())
        for _ in range(2):
            model(inputs).sum().backward()
            found.append(live.live_bytes)
            optimizer.step()
            found.append(live.live_bytes)
    return [round(x / storage_bytes(model), 1) for x in found]


def test_adam_takes_twice_the_model_at_its_first_step_and_sgd_nothing():
    adam, sgd = (sizes_of_a_step(make) for make in (torch.optim.Adam, torch.optim.SGD))
    assert adam[0] == sgd[0]  # one backward alone does not tell them apart
    assert [x - adam[0] for x in adam] == [0, 2, 2, 2]
    assert [x - sgd[0] for x in sgd] == [0, 0, 0, 0]


def losses_at(lr: float, num_steps: int = 50) -> list[float]:
    """The loss of a linear model before each of so many steps of SGD."""
    model, found = layer(), []
    optimizer = torch.optim.SGD(model.parameters(), lr)
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss = loss_sum(model, samples(16)) / 16
        loss.backward()
        found.append(loss.item())
        optimizer.step()
    return found


def test_a_learning_rate_that_is_scaled_over_its_ceiling_makes_every_step_worse():
    inputs = samples(16)
    steepest = torch.linalg.eigvalsh(2 * inputs.T @ inputs / 16).max().item()
    lr = 0.5 / steepest  # for one GPU; above 2 / steepest no step converges
    for num_gpus, gets_better in ((1, True), (3, True), (5, False), (8, False)):
        losses = losses_at(num_gpus * lr)
        assert (losses[-1] < losses[0]) == gets_better
    assert losses[-1] > 1e6 * losses[0]


def test_an_epoch_has_fewer_updates_than_batches():
    data, num_micro_batches = range(48_000), 8
    loader = DataLoader(data, 8, sampler=DistributedSampler(data, 2, 0))
    updates = sum(1 for _ in windows(range(len(loader)), num_micro_batches))
    assert (len(loader), updates) == (3_000, 375)
    assert updates * 8 * num_micro_batches * 2 == len(data)


def test_cross_entropy_over_one_class_teaches_nothing():
    inputs, targets = samples(4), samples(4, 1)
    model = layer()
    loss = F.cross_entropy(model(inputs), targets)
    loss.backward()
    assert abs(loss.item()) == model.weight.grad.norm().item() == 0.0
    model.zero_grad()
    F.mse_loss(model(inputs), targets).backward()
    assert model.weight.grad.norm() > 0.1


def test_power_sgd_starts_after_the_buckets_are_rebuilt():
    with pytest.raises(ValueError, match="start_powerSGD_iter"):
        PowerSGDState(None, start_powerSGD_iter=1)
    assert PowerSGDState(None, start_powerSGD_iter=2).start_powerSGD_iter == 2


def test_four_gpus_on_a_slow_link_are_slower_than_one_unless_they_accumulate():
    compute_s, bandwidth = 5e-3, 8e9
    sent_s = critical_path("ring", 400_000_000, 4).sent_bytes / bandwidth
    assert sent_s == pytest.approx(75e-3)

    def speed_up(num_micro_batches):
        return 4 * num_micro_batches * compute_s / (num_micro_batches * compute_s + sent_s)

    assert speed_up(1) < 1 < speed_up(15) == 2.0


def test_gloo_takes_the_interface_that_is_named(monkeypatch):
    for name in TORCHRUN_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    with process_group(backend="gloo"):
        dist.all_reduce(torch.ones(1))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch0")
    with pytest.raises(RuntimeError, match="nosuch0"), process_group(backend="gloo"):
        pass


# bugs of two ranks, all in one launch


def flag_after_forward(model, window):
    for index, part in enumerate(window):
        loss = loss_sum(model, part)
        model.require_backward_grad_sync = index == len(window) - 1
        loss.backward()


def flag_before_forward(model, window):
    for index, part in enumerate(window):
        model.require_backward_grad_sync = index == len(window) - 1
        loss_sum(model, part).backward()


def averaged(tensor: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(tensor)
    return tensor.div_(dist.get_world_size())


def hook_on_the_tensor(model, window):
    is_last = False
    model.weight.register_hook(lambda grad: averaged(grad.clone()) if is_last else grad)
    for index, part in enumerate(window):
        is_last = index == len(window) - 1
        loss_sum(model, part).backward()


def hook_on_the_sum(model, window):
    is_last = False

    def hook(param):
        if is_last:
            averaged(param.grad)

    model.weight.register_post_accumulate_grad_hook(hook)
    for index, part in enumerate(window):
        is_last = index == len(window) - 1
        loss_sum(model, part).backward()


def flags_and_hooks(part: torch.Tensor, rank: int) -> dict:
    found = {}
    for train in (flag_after_forward, flag_before_forward):
        model = TorchDDP(layer(seed=rank))
        assert_replicas_equal(model.module)  # other seeds, and still one model
        train(model, part.split(1))
        found[train.__name__] = gradients(model.module)
    for train in (hook_on_the_tensor, hook_on_the_sum):
        for num_parts in (1, 4):
            train(model := layer(), part.chunk(num_parts))
            found[train.__name__, num_parts] = gradients(model)
    return found


def sums_and_means(part: torch.Tensor, rank: int) -> dict:
    found = {}
    for name, factor in {"summed": 1, "mean": 1 / len(part), "by all": 2 / 8}.items():
        model = TorchDDP(layer())
        (loss_sum(model, part) * factor).backward()
        found[name] = gradients(model.module)
    return found


def averages(part: torch.Tensor, rank: int) -> dict:
    dist.all_reduce(of_seven := torch.full((7,), 1.0 + rank), dist.ReduceOp.AVG)
    alone = [dist.new_group([each]) for each in range(2)][rank]
    dist.all_reduce(by_itself := torch.full((7,), 1.0 + rank), dist.ReduceOp.AVG, group=alone)
    try:
        dist.all_reduce(integers := torch.tensor([1 + rank]), dist.ReduceOp.AVG)
    except RuntimeError as error:
        return {"of seven": of_seven, "alone": by_itself, "integers": str(error)}
    return {"integers": f"no error, and {integers.tolist()}"}


def mask(seed: int) -> torch.Tensor:
    torch.manual_seed(seed)
    return F.dropout(torch.ones(64), 0.5)


def chance(part: torch.Tensor, rank: int) -> dict:
    found = {"one seed": mask(7), "seed by rank": mask(7 + rank)}
    torch.seed()  # as in a process that sets none
    for name, generator in {"unseeded": None, "seeded": torch.Generator().manual_seed(0)}.items():
        parts = torch.utils.data.random_split(range(100), [80, 20], generator)
        found[name] = [set(each) for each in parts]
    return found


def normalised(part: torch.Tensor, *, by_count: bool) -> torch.Tensor:
    """Normalise this rank's rows as one process would all rows, or by the mean of means."""
    count = torch.tensor([len(part)] if by_count else [1.0], dtype=part.dtype)
    moments = torch.cat([part.sum(0), part.square().sum(0)]) * (count / len(part))
    for each in (moments, count):
        dist.all_reduce(each)
    mean, square = (moments / count).chunk(2)
    return (part - mean) / (square - mean**2 + 1e-5).sqrt()


def buffers(part: torch.Tensor, rank: int) -> dict:
    rows = samples(16).split([4, 12])[rank]
    found = {by_count: normalised(rows, by_count=by_count) for by_count in (False, True)}
    model = TorchDDP(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).double())
    model.eval()
    for name, call in {"wrapper": model, "inside": model.module}.items():
        with torch.no_grad(), count_traffic() as traffic:
            call(part)
        found[name] = traffic.collectives["broadcast"]
    return found


def buckets(part: torch.Tensor, rank: int) -> dict:
    found = {}
    for cap_mb in (0.5, 25, 100):
        layers = [nn.Linear(256, 256) for _ in range(4)]  # 1 MiB
        model = TorchDDP(nn.Sequential(*layers), bucket_cap_mb=cap_mb)
        model(torch.ones(1, 256)).sum().backward()
        with count_traffic() as traffic:  # buckets are made anew after the first backward
            model(torch.ones(1, 256)).sum().backward()
        found["messages", cap_mb] = traffic.collectives["all_reduce"]
    for views in (False, True):
        module = nn.Linear(256, 256)
        with LiveBytes() as live:
            model = TorchDDP(module, gradient_as_bucket_view=views)
            model(torch.ones(1, 256)).sum().backward()
        found["sizes", views] = live.live_bytes / storage_bytes(module)
    return found


class WithIdle(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.idle = layer(), layer()

    def forward(self, inputs):
        return self.used(inputs)


def idle(part: torch.Tensor, rank: int) -> dict:
    model = TorchDDP(WithIdle())
    for iteration in range(2):
        try:
            loss_sum(model, part).backward()
        except RuntimeError as error:
            return {"idle": (iteration, str(error))}
    return {"idle": (2, "no error")}


class OtherStrides(torch.autograd.Function):
    """Gives its input a gradient of the same numbers, whose rows of one number lie otherwise.

    Convolutions and products do so for some shapes and numbers of threads.
    """

    @staticmethod
    def forward(ctx, weight):
        return weight.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad.contiguous().as_strided((1, 3), (1, 1))


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(layer().weight.detach())

    def forward(self, inputs):
        return F.linear(inputs, OtherStrides.apply(self.weight))


def strides(part: torch.Tensor, rank: int) -> dict:
    model = TorchDDP(Odd())
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        loss_sum(model, part).backward()
    return {"strides": gradients(model.module), "warnings": [str(each.message) for each in said]}


LOOKS = (flags_and_hooks, sums_and_means, averages, chance, buffers, buckets, idle, strides)


def on_two_ranks() -> dict:
    """What each rank finds. Every rank must call this."""
    found = {}
    with process_group(timeout_s=10) as ranks:
        part = samples(8)[ranks.rank :: 2]
        for look in LOOKS:
            found |= look(part, ranks.rank)
    return found


@pytest.fixture(scope="module")
def found() -> list[dict]:
    return run_function(on_two_ranks, nproc_per_node=2, timeout_s=30)


def serial() -> dict:
    """The gradient of the summed loss of all eight samples, in one process."""
    loss_sum(model := layer(), samples(8)).backward()
    return gradients(model)


def divided(named: dict, number: int) -> dict:
    return {name: grad / number for name, grad in named.items()}


def test_a_flag_set_after_forward_parts_the_replicas(found):
    late = [rank["flag_after_forward"] for rank in found]
    assert relative_error(late[0], late[1]) > 0.1
    for rank in found:
        assert relative_error(rank["flag_before_forward"], divided(serial(), 2)) < 1e-12


def test_a_hook_on_the_tensor_averages_the_newest_gradient_only(found):
    first, second = found
    assert relative_error(first["hook_on_the_tensor", 4], second["hook_on_the_tensor", 4]) > 0.1
    for right in (("hook_on_the_tensor", 1), ("hook_on_the_sum", 1), ("hook_on_the_sum", 4)):
        assert all(relative_error(rank[right], divided(serial(), 2)) < 1e-12 for rank in found)


def test_a_summed_loss_shrinks_with_the_ranks(found):
    for rank in found:
        assert relative_error(rank["summed"], serial()) == pytest.approx(0.5, abs=1e-12)
        for right in ("mean", "by all"):
            assert relative_error(rank[right], divided(serial(), 8)) < 1e-12


def test_one_seed_for_all_ranks_makes_one_dropout_mask(found):
    first, second = found
    assert torch.equal(first["one seed"], second["one seed"])
    assert not torch.equal(first["seed by rank"], second["seed by rank"])


def test_a_split_by_each_ranks_own_chance_trains_on_what_is_held_out(found):
    first, second = found
    (train, _), (_, held_out) = first["unseeded"], second["unseeded"]
    assert len(train & held_out) > 5
    assert first["seeded"] == second["seeded"]
    assert not first["seeded"][0] & second["seeded"][1]


def test_an_average_divides_by_the_ranks_and_not_by_the_elements(found):
    for number, rank in enumerate(found):
        assert torch.equal(rank["of seven"], torch.full((7,), 1.5))
        assert torch.equal(rank["alone"], torch.full((7,), 1.0 + number))
        assert "can't be cast" in rank["integers"]


def test_statistics_of_unequal_ranks_are_weighed_by_their_counts(found):
    norm = nn.BatchNorm1d(3, affine=False).double()
    for rank, expected in zip(found, norm(samples(16)).split([4, 12]), strict=True):
        assert relative_error(rank[False], expected) > 0.05
        assert relative_error(rank[True], expected) < 1e-12


def test_a_forward_of_the_wrapper_broadcasts_buffers_in_evaluation_too(found):
    for rank in found:
        assert rank["wrapper"] > 0 == rank["inside"]


def test_a_bucket_larger_than_the_model_is_as_good_as_any_other(found):
    for rank in found:
        assert rank["messages", 25] == rank["messages", 100] < rank["messages", 0.5]


def test_a_parameter_without_a_gradient_is_an_error_one_iteration_late(found):
    for rank in found:
        iteration, error = rank["idle"]
        assert iteration == 1
        assert error.startswith("Expected to have finished reduction in the prior iteration")


def test_a_gradient_with_other_strides_brings_a_warning_and_is_right(found):
    for rank in found:
        (said,) = rank["warnings"]
        assert said.startswith("Grad strides do not match bucket view strides")
        assert relative_error(rank["strides"], divided(serial(), 2)) < 1e-12


def test_buckets_are_one_more_copy_of_the_gradients(found):
    for rank in found:
        assert rank["sizes", False] - rank["sizes", True] == pytest.approx(1, abs=0.05)
