"""The museum's gallery: each bug of its table has its test, and the small ones are here.

In each test of a bug the fault comes first and is seen, then the right way, which is exact.
"""

import ast
import functools
import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from notebook_cells import BOOK, ROOT
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from helpers.accumulate import accumulate_gradients, windows
from helpers.compare import assert_replicas_equal, gradients, relative_error
from helpers.cost_model import critical_path
from helpers.launch import run_function
from helpers.process_group import process_group

MUSEUM = BOOK / "bug_museum"
ROW = re.compile(r"^\* - \((bug-[\w-]+)\)=$", re.M)
TEST = re.compile(r"`tests/(test_\w+\.py)::(test_\w+)`")
LINK = re.compile(r"\{ref\}`(?:[^`<]*<)?((?:bug|exhibit)-[\w-]+)>?`")

# the page


@functools.cache
def page() -> str:
    return (MUSEUM / "index.md").read_text()


def rows(text: str) -> dict[str, str]:
    """The text of each row of the table, by its label."""
    _, *parts = ROW.split(text)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def symptoms(text: str) -> dict[str, list[str]]:
    """What each symptom links to."""
    section = text.split("\n## By symptom\n")[1].split("\n## ")[0]
    _, *parts = re.split(r"^### (.+)$", section, flags=re.M)
    return {name: LINK.findall(part) for name, part in zip(parts[::2], parts[1::2], strict=True)}


def linked_from_symptoms() -> set[str]:
    return set().union(*symptoms(page()).values())


def exhibits(folder: Path = MUSEUM) -> list[str]:
    """The labels of the exhibits in the rooms that there are."""
    rooms = "".join(path.read_text() for path in sorted(folder.glob("room_*.ipynb")))
    return re.findall(r"\((exhibit-\w+)\)=", rooms)


def missing_tests(text: str) -> list[str]:
    """The tests that the text names and the repository lacks."""
    return [f"{file}::{name}" for file, name in TEST.findall(text) if name not in names_in(file)]


@functools.cache
def names_in(file: str) -> set[str]:
    path = ROOT / "tests" / file
    body = ast.parse(path.read_text()).body if path.exists() else []
    return {node.name for node in body if isinstance(node, ast.FunctionDef)}


def test_every_bug_names_a_test_that_exists():
    found = rows(page())
    assert len(found) == page().count("\n* - (bug-") > 30
    assert [label for label, text in found.items() if not TEST.search(text)] == []
    assert missing_tests(page()) == []


def test_every_bug_has_a_source_and_is_under_a_symptom():
    for label, text in rows(page()).items():
        assert "](https://github.com/" in text, label
        assert label in linked_from_symptoms()


def test_every_symptom_leads_somewhere_and_every_link_to_a_bug_or_an_exhibit():
    found = symptoms(page())
    assert len(found) >= 10
    assert [name for name, links in found.items() if not links] == []
    labels = {link for link in LINK.findall(page()) if link.startswith("bug-")}
    assert labels <= rows(page()).keys()


def test_every_exhibit_is_under_a_symptom():
    assert set(exhibits()) <= linked_from_symptoms()


def test_what_is_missing_is_found(tmp_path):
    assert missing_tests("`tests/test_gate.py::test_never`") == ["test_gate.py::test_never"]
    assert missing_tests("`tests/test_none.py::test_x`") == ["test_none.py::test_x"]
    text = (
        "\n## By symptom\n\n### Slow\n\n- {ref}`one <bug-a>`, {ref}`exhibit-b`\n\n### Odd\n\n## Z"
    )
    assert symptoms(text) == {"Slow": ["bug-a", "exhibit-b"], "Odd": []}
    (tmp_path / "room_x.ipynb").write_text('["(exhibit-z9)=\\n"]')
    assert exhibits(tmp_path) == ["exhibit-z9"]


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


def test_cross_entropy_over_one_class_teaches_nothing():
    inputs, targets = samples(4), samples(4, 1)
    model = layer()
    loss = F.cross_entropy(model(inputs), targets)
    loss.backward()
    assert abs(loss.item()) == model.weight.grad.norm().item() == 0.0
    model.zero_grad()
    F.mse_loss(model(inputs), targets).backward()
    assert model.weight.grad.norm() > 0.1


def test_a_split_by_each_ranks_own_chance_trains_on_what_is_held_out():
    def split(seed):
        generator = torch.Generator().manual_seed(seed)
        parts = torch.utils.data.random_split(range(100), [80, 20], generator)
        return [set(part) for part in parts]

    (train, _), (_, held_out) = split(0), split(1)
    assert len(train & held_out) > 10
    assert not split(0)[0] & split(0)[1]


def test_statistics_of_unequal_ranks_are_weighed_by_their_counts():
    rows_of_all = samples(16)
    parts = rows_of_all.split([4, 12])
    of_means = torch.stack([part.mean(0) for part in parts]).mean(0)
    weighed = sum(part.sum(0) for part in parts) / 16
    squares = sum(part.square().sum(0) for part in parts) / 16
    assert relative_error(of_means, rows_of_all.mean(0)) > 0.05
    assert relative_error(weighed, rows_of_all.mean(0)) < 1e-12
    assert relative_error(squares - weighed**2, rows_of_all.var(0, correction=0)) < 1e-12


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


def integers_averaged() -> str:
    try:
        dist.all_reduce(tensor := torch.tensor([1 + dist.get_rank()]), dist.ReduceOp.AVG)
    except RuntimeError as error:
        return str(error)
    return f"no error, and {tensor.tolist()}"


def mask(seed: int) -> torch.Tensor:
    torch.manual_seed(seed)
    return F.dropout(torch.ones(64), 0.5)


def on_two_ranks() -> dict:
    """What each rank finds. Every rank must call this."""
    found = {}
    with process_group(timeout_s=10) as ranks:
        part = samples(8)[ranks.rank :: 2]
        for train in (flag_after_forward, flag_before_forward):
            model = TorchDDP(layer(seed=ranks.rank))
            assert_replicas_equal(model.module)  # other seeds, and still one model
            train(model, part.split(1))
            found[train.__name__] = gradients(model.module)
        for train in (hook_on_the_tensor, hook_on_the_sum):
            train(model := layer(), part.split(1))
            found[train.__name__] = gradients(model)
        model = TorchDDP(layer())
        loss_sum(model, part).backward()
        found["summed"] = gradients(model.module)
        model.zero_grad()
        (loss_sum(model, part) / len(part)).backward()
        found["mean"] = gradients(model.module)
        found["one seed"], found["seed by rank"] = mask(7), mask(7 + ranks.rank)
        sent = torch.full((7,), 1.0 + ranks.rank)
        dist.all_reduce(sent)
        found["sum of seven"], found["integers"] = sent, integers_averaged()
    return found


@pytest.fixture(scope="module")
def found() -> list[dict]:
    return run_function(on_two_ranks, nproc_per_node=2, timeout_s=30)


def serial() -> dict:
    """The gradient of the summed loss of all eight samples, in one process."""
    loss_sum(model := layer(), samples(8)).backward()
    return gradients(model)


def half(named: dict) -> dict:
    return {name: grad / 2 for name, grad in named.items()}


def test_a_flag_set_after_forward_parts_the_replicas(found):
    late = [rank["flag_after_forward"] for rank in found]
    assert relative_error(late[0], late[1]) > 0.1
    assert all(relative_error(r["flag_before_forward"], half(serial())) < 1e-12 for r in found)


def test_a_hook_on_the_tensor_averages_the_newest_gradient_only(found):
    assert relative_error(found[0]["hook_on_the_tensor"], found[1]["hook_on_the_tensor"]) > 0.1
    assert all(relative_error(rank["hook_on_the_sum"], half(serial())) < 1e-12 for rank in found)


def test_a_summed_loss_shrinks_with_the_ranks(found):
    for rank in found:
        assert relative_error(rank["summed"], serial()) == pytest.approx(0.5, abs=1e-12)
        mean = {name: grad / 8 for name, grad in serial().items()}
        assert relative_error(rank["mean"], mean) < 1e-12


def test_one_seed_for_all_ranks_makes_one_dropout_mask(found):
    first, second = found
    assert torch.equal(first["one seed"], second["one seed"])
    assert not torch.equal(first["seed by rank"], second["seed by rank"])


def test_an_average_divides_by_the_ranks_and_not_by_the_elements(found):
    for rank in found:
        assert torch.equal(rank["sum of seven"] / 2, torch.full((7,), 1.5))
        assert not torch.equal(rank["sum of seven"] / 7, torch.full((7,), 1.5))
        assert "can't be cast" in rank["integers"]
