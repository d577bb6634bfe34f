"""Trainings side by side are trainings alone; what is dealt; what is refused."""

import pytest
import torch
import torch.nn.functional as F

from helpers import problems, sweep

SMALL = problems.Data(*(tuple(x[:96] for x in part) for part in problems.digits(torch.float64)))


def last(*arguments, **options):
    *_, look = sweep.train(*arguments, data=SMALL, sizes=(64, 8, 10), **options)
    return look


@pytest.mark.parametrize(
    ("rule", "make"), [(sweep.sgd, torch.optim.SGD), (sweep.adam, torch.optim.Adam)]
)
def test_each_row_is_a_training_with_torchs_optimizer(rule, make):
    lrs = [0.01, 0.05]
    t, losses, wrong = last(rule, 32, lrs, 10, seeds=2)
    assert t == 10
    x, y = SMALL.validation
    for i, lr in enumerate(lrs):
        for seed in range(2):
            model = sweep.alone(
                10, data=SMALL, lr=lr, seed=seed, make=make, sizes=(64, 8, 10), batch_size=32
            )
            assert losses[i][seed] == pytest.approx(F.cross_entropy(model(x), y).item(), rel=1e-9)
            share = (model(x).argmax(1) != y).double().mean().item()
            assert wrong[i][seed] == pytest.approx(share)
    assert losses[0][0] != losses[0][1]


def test_warm_up_begins_with_a_part_of_the_rate():
    (first, *_), (plain, *_) = (last(sweep.sgd, 32, [0.1], 1, warm_up=w)[1] for w in (4, 0))
    (quarter, *_) = last(sweep.sgd, 32, [0.025], 1)[1]
    assert first == pytest.approx(quarter, rel=1e-12)
    assert first != plain


def test_looks_are_where_asked_and_at_the_end():
    looks = sweep.train(sweep.sgd, 96, [0.1], 7, data=SMALL, sizes=(64, 8, 10), looks=[2, 3])
    assert [t for t, *_ in looks] == [2, 3, 7]


def test_an_epoch_deals_no_sample_twice_and_a_seed_its_own_order():
    dealt = list(sweep.deal(10, 4, 2, 4))
    epochs = [torch.cat(dealt[i : i + 2], 1) for i in (0, 2)]
    for row in torch.cat(epochs):
        assert len(set(row.tolist())) == 8
    assert not torch.equal(*epochs)
    assert not torch.equal(*epochs[0])
    alone = list(sweep.deal(10, 4, 1, 4))
    assert all(torch.equal(a[0], b[0]) for a, b in zip(alone, dealt, strict=True))


def test_unusable_batches_and_no_seeds_are_refused():
    with pytest.raises(ValueError, match="a batch of 11, expected 1 to 10 samples"):
        next(sweep.deal(10, 11, 1, 1))
    with pytest.raises(ValueError, match="found no seed"):
        problems.StackedMLP((4, 2), [])


def test_models_of_a_stack_share_nothing():
    model = problems.StackedMLP((64, 8, 10), [3, 4], dtype=torch.float64)
    x, y = (part.expand(2, *part.shape) for part in SMALL.train)
    model.losses(x, y)[1].backward()
    assert all(p.grad[0].abs().max() == 0 < p.grad[1].abs().max() for p in model.parameters())
    single = problems.make_mlp((64, 8, 10), seed=4, dtype=torch.float64)
    assert torch.allclose(model(x)[1], single(x[1]), rtol=1e-12, atol=1e-12)


def test_the_best_rate_comes_with_those_that_its_seeds_cannot_tell_from_it():
    rates = [0.25, 0.5, 1.0, 2.0]
    found = sweep.best([[3.0, 2.9, 3.1], [1.2, 1.3, 0.9], [1.0, 1.3, 0.8], [0.7, 5.0, 6.0]], rates)
    assert (found.lr, found.loss, found.as_good) == (1.0, 1.0, [0.5, 1.0])
    assert str(found) == "loss 1.00 (0.80 to 1.30) at 1; as good: 1/2 to 1"
    alone = sweep.best([[3.0, 2.9], [1.2, 1.3]], [1 / 64, 0.3])
    assert str(alone) == "loss 1.25 (1.20 to 1.30) at 0.3"


def test_a_fraction_is_written_as_one_writes_it():
    assert [*map(sweep.fraction, (1 / 64, 0.5, 1.0, 4.0, 0.3))] == ["1/64", "1/2", "1", "4", "0.3"]


def test_updates_to_a_target_are_those_of_the_rate_whose_last_seed_is_first(monkeypatch):
    looks = [  # two rates, two seeds: the second rate has one seed there early, one late
        (3, [[2.0, 2.0], [0.9, 2.0]]),
        (6, [[0.9, 2.0], [0.9, 2.0]]),
        (9, [[1.5, 0.9], [0.4, 0.9]]),
        (12, [[0.4, 0.4], [0.4, 0.4]]),
    ]
    monkeypatch.setattr(sweep, "train", lambda *a, **o: ((t, losses, []) for t, losses in looks))
    found = sweep.updates_to([1.0, 0.5], sweep.sgd, 8, [0.1, 0.2], most=20)
    assert found == {1.0: [6, 9], 0.5: [12, 12]}
    with pytest.raises(ValueError, match=r"batches of 8: \[0.1\] not reached after 20 updates"):
        sweep.updates_to([1.0, 0.1], sweep.sgd, 8, [0.1, 0.2], most=20)


def test_updates_to_a_target_look_at_trainings():
    options = {"data": SMALL, "sizes": (64, 8, 10), "seeds": 2}
    (times,) = sweep.updates_to([2.0], sweep.sgd, 32, [0.5], most=60, **options).values()
    runs = {t: losses[0] for t, losses, _ in
            sweep.train(sweep.sgd, 32, [0.5], 60, looks=range(0, 60, 3), **options)}  # fmt: skip
    assert times == [min(t for t, of in runs.items() if of[seed] < 2.0) for seed in range(2)]


def test_a_bend_is_found_again():
    least, bend = sweep.fit_bend({b: 50 * (1 + 20 / b) for b in (4, 16, 64, 256)})
    assert (round(least, 6), bend) == (50, 20)
