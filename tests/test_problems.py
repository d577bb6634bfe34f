"""Data is the same in every run, models the same in every dtype, sums meet their counts."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from helpers import problems


@pytest.fixture(scope="module")
def tokens() -> torch.Tensor:
    return problems.encode(problems.library_text(20_000))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_digits_are_split_once_and_share_no_sample():
    data, again = problems.digits(torch.float64), problems.digits(torch.float64)
    assert [len(part[1]) for part in data] == [1536, 261]
    assert data.train[0].shape == (1536, 64)
    assert data.train[0].dtype == torch.float64
    assert data.train[1].dtype == torch.int64
    assert data.train[0].min() == 0
    assert data.train[0].max() == 1
    assert torch.equal(data.train[0], again.train[0])
    assert set(data.train[1].tolist()) == set(range(10)) == set(data.validation[1].tolist())


def test_digits_are_scikit_learns():
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    ours = torch.cat([part[0] for part in problems.digits(torch.float64)]) * 16
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    assert torch.equal(ours, torch.from_numpy(images)[order])
    assert torch.cat([part[1] for part in problems.digits()]).tolist() == labels[order].tolist()


def test_library_text_is_printable_and_has_the_length_asked_for(tokens):
    text = problems.library_text(1_000_000)
    assert len(text) == 1_000_000
    assert text[:20_000] == problems.library_text(20_000)
    assert tokens.min() >= 0
    assert tokens.max() < problems.VOCABULARY_SIZE
    with pytest.raises(ValueError, match="the library has"):
        problems.library_text(10**9)


def test_encode_numbers_characters_and_names_a_foreign_one():
    assert problems.encode(" ~\n").tolist() == [0, 94, 95]
    with pytest.raises(ValueError, match="'\\\\t' at position 1"):
        problems.encode("a\tb")


def test_token_batch_targets_are_the_next_tokens(tokens):
    inputs, targets = problems.token_batch(tokens, 3, 16, generator())
    assert inputs.shape == targets.shape == (3, 16)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    again, _ = problems.token_batch(tokens, 3, 16, generator())
    assert torch.equal(inputs, again)
    with pytest.raises(ValueError, match="at least 17"):
        problems.token_batch(tokens[:16], 3, 16, generator())


def test_lines_batch_pads_and_ignores_the_padding():
    text = "\nab\n\n" + "c" * 9 + "\nrest without a newline"
    inputs, targets = problems.lines_batch(problems.encode(text), 64, 5, generator())
    assert inputs.shape == targets.shape == (64, 5)
    short = inputs[inputs[:, 0] == problems.encode("a")]
    assert torch.equal(short, problems.encode("ab   ").expand_as(short))
    rows = {tuple(row) for row in targets.tolist()}
    c = int(problems.encode("c"))
    assert rows == {(int(problems.encode("b")), 95, -100, -100, -100), (c,) * 5}
    with pytest.raises(ValueError, match="expected one"):
        problems.lines_batch(problems.encode("no newline"), 1, 5, generator())


def test_lines_of_the_library_have_unequal_lengths(tokens):
    batch = problems.lines_batch(tokens, 32, 64, generator())
    lengths = (batch[1] != problems.IGNORE_INDEX).sum(1)
    assert lengths.min() >= 1
    assert len(set(lengths.tolist())) > 4
    assert problems.count_tokens(batch) == lengths.sum()


def test_split_is_a_partition_in_order_and_refuses_a_remainder():
    batch = torch.arange(12), torch.arange(12) * 2
    shards = [problems.split(batch, rank, 4) for rank in range(4)]
    assert torch.equal(torch.cat([shard[0] for shard in shards]), batch[0])
    assert torch.equal(torch.cat([shard[1] for shard in shards]), batch[1])
    with pytest.raises(ValueError, match="12 samples does not divide by 5"):
        problems.split(batch, 0, 5)
    with pytest.raises(ValueError, match="rank 4, expected 0 to 3"):
        problems.split(batch, 4, 4)


@pytest.mark.parametrize("make", [problems.make_mlp, problems.make_conv, problems.make_gpt])
def test_models_are_drawn_from_their_seed_alone(make):
    before = torch.get_rng_state()
    first, double, other = make(seed=1), make(seed=1, dtype=torch.float64), make(seed=2)
    assert torch.equal(before, torch.get_rng_state())
    pairs = list(zip(first.parameters(), double.parameters(), strict=True))
    assert all(torch.equal(a.double(), b) for a, b in pairs)
    assert not all(map(torch.equal, first.parameters(), other.parameters()))


def test_models_of_digits_classify_ten_digits():
    inputs = problems.digits().train[0][:5]
    assert problems.make_mlp()(inputs).shape == (5, 10)
    for norm in ("group", "batch"):
        assert problems.make_conv(norm=norm)(inputs).shape == (5, 10)
    with pytest.raises(ValueError, match="'layer'"):
        problems.make_conv(norm="layer")


def test_gpt_never_looks_ahead(tokens):
    model = problems.make_gpt()
    inputs, _ = problems.token_batch(tokens, 1, 32, generator())
    changed = inputs.clone()
    changed[0, 20:] = 1
    assert torch.equal(model(inputs)[0, :20], model(changed)[0, :20])
    assert not torch.equal(model(inputs)[0, 20:], model(changed)[0, 20:])


def test_gpt_attention_is_torchs():
    layer = problems.make_gpt(dtype=torch.float64).blocks[0].attention
    x = torch.randn(2, 7, 64, dtype=torch.float64, generator=generator())
    parts = layer.query_key_value(x).chunk(3, dim=-1)
    parts = [part.unflatten(-1, (4, 16)).transpose(1, 2) for part in parts]
    expected = torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
    expected = layer.output(expected.transpose(1, 2).flatten(2))
    assert (layer(x) - expected).abs().max() < 1e-14


def test_gpt_checkpointing_changes_no_gradient(tokens):
    batch = problems.token_batch(tokens, 2, 16, generator())
    gradients = []
    for checkpoint in (False, True):
        model = problems.make_gpt(dtype=torch.float64, checkpoint=checkpoint)
        problems.token_loss_sum(model, batch).backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(map(torch.equal, *gradients))


def test_gpt_tied_head_is_one_parameter():
    model = problems.make_gpt(tied=True)
    assert model.head.weight is model.token_embedding.weight
    untied = sum(p.numel() for p in problems.make_gpt().parameters())
    assert untied - sum(p.numel() for p in model.parameters()) == 96 * 64


def test_gpt_refuses_bad_shapes():
    with pytest.raises(ValueError, match="width of 10 does not divide by 4"):
        problems.GPT(width=10)
    with pytest.raises(ValueError, match="9 tokens, expected at most 8"):
        problems.make_gpt(context=8)(torch.zeros(1, 9, dtype=torch.int64))


def test_gpt_works_on_fake_and_meta_tensors():
    before = torch.get_rng_state()
    with FakeTensorMode():
        model = problems.make_gpt(width=128, dtype=torch.bfloat16, checkpoint=True)
        tokens = torch.zeros(2, 8, dtype=torch.int64)
        loss = problems.token_loss_sum(model, (tokens, tokens))
        loss.backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
    with torch.device("meta"):
        assert problems.make_gpt()(torch.zeros(1, 4, dtype=torch.int64)).shape == (1, 4, 96)
    assert torch.equal(before, torch.get_rng_state())


def test_next_characters_are_one_hot_and_from_their_own_part_of_the_text():
    data = problems.next_characters(32, 8)
    text = problems.encode(problems.library_text(400_000))
    for (x, y), part in zip(data, (text[:360_000], text[360_000:]), strict=True):
        assert x.shape == (len(y), 4 * problems.VOCABULARY_SIZE)
        one_hot = x.view(len(y), 4, -1)
        assert torch.equal(one_hot.sum(2), torch.ones(len(y), 4))
        rows = torch.cat([one_hot.argmax(2), y[:, None]], 1)
        windows = part.unfold(0, 5, 1)
        assert all((windows == row).all(1).any() for row in rows)
    again = problems.next_characters(32, 8)
    assert torch.equal(again.train[0], data.train[0])


def test_losses_are_sums_and_ignored_targets_add_nothing(tokens):
    model = problems.make_gpt(dtype=torch.float64)
    inputs, targets = problems.lines_batch(tokens, 6, 32, generator())
    whole = problems.token_loss_sum(model, (inputs, targets))
    rows = [
        problems.token_loss_sum(model, (inputs[i : i + 1], targets[i : i + 1])) for i in range(6)
    ]
    assert abs((whole - sum(rows)).item()) < 1e-10
    ignored = problems.token_loss_sum(model, (inputs, torch.full_like(targets, -100)))
    ignored.backward()
    assert ignored.item() == 0
    assert all(parameter.grad.abs().max() == 0 for parameter in model.parameters())
    data = problems.digits(torch.float64).train
    mlp = problems.make_mlp(dtype=torch.float64)
    mean = torch.nn.functional.cross_entropy(mlp(data[0]), data[1])
    assert problems.count_samples(data) == 1536
    assert abs((problems.classification_loss_sum(mlp, data) / 1536 - mean).item()) < 1e-12
