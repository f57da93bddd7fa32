"""skorch: SkorchMixin in skorch's own loop, against one pass over the whole batch."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest
import skorch
import torch
from skorch.callbacks import GradientNormClipping
from skorch.helper import predefined_split
from torch import nn
from torch.nn import functional as F

import maskgrad as mg
from tests.ecosystem.micro_batches import Tagger, batch, cut, jagged, moved, one_pass
from tests.ecosystem.rows import one_line, refused


class Scores(nn.Module):
    """Classes in dimension 1, where PyTorch's losses want them."""

    def __init__(self) -> None:
        super().__init__()
        self.tagger = Tagger()

    def forward(self, tokens: Any) -> Any:
        return self.tagger(tokens).movedim(-1, 1)


class Net(mg.integrations.SkorchMixin, skorch.NeuralNet):
    """As the page says."""

    accumulate_batches = 4


class Pieces(torch.utils.data.Dataset):
    """Micro-batches; skorch takes a list for one input with several parts."""

    def __init__(self, pieces: list[Any]) -> None:
        self.pieces = pieces

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, place: int) -> Any:
        return self.pieces[place]


def collate(samples: list[Any]) -> Any:
    """A sample of the data set is a micro-batch."""
    ((x, y),) = samples
    return x, mg.masked(y.clamp(min=0), y != -100)


def collate_jagged(samples: list[Any]) -> Any:
    """The same with no padding, in inputs and targets."""
    ((x, y),) = samples
    return jagged(x, y)


def net_of(kind: Any = Net, **changes: Any) -> Any:
    options: dict[str, Any] = {
        "criterion": nn.CrossEntropyLoss,
        "criterion__reduction": "none",
        "optimizer": torch.optim.SGD,
        "lr": 0.5,
        "batch_size": 1,
        "max_epochs": 1,
        "train_split": None,
        "verbose": 0,
        "iterator_train__collate_fn": collate,
        "iterator_valid__collate_fn": collate,
        "callbacks": [GradientNormClipping(0.3)],
    }
    return kind(Scores, **options | changes)


@one_line("skorch", "masked targets, micro-batches", "`mg.integrations.SkorchMixin`")
def test_a_step_is_one_pass() -> None:
    batches, truth = [batch(seed) for seed in range(3)], Tagger()
    one_pass(truth, batches)
    micro = [piece for seed, whole in enumerate(batches) for piece in cut(seed, *whole, 4)]
    net = net_of().fit(Pieces(micro), y=None)
    assert moved(net.module_.tagger, truth) < 1e-6


def test_the_last_step_has_what_is_left_and_epochs_count_entries() -> None:
    micro = cut(1, *batch(1), 6)
    held = cut(2, *batch(2), 3)
    split = predefined_split(Pieces(held))
    net = net_of(train_split=split).fit(Pieces(micro), y=None)
    truth = Tagger()
    parts = [tuple(torch.cat(t) for t in zip(*some, strict=True)) for some in (micro[:4], micro[4:])]
    one_pass(truth, parts)  # type: ignore[arg-type]
    assert moved(net.module_.tagger, truth) < 1e-6
    x, y = batch(2)
    valid = F.cross_entropy(truth(x)[y != -100], y[y != -100]).item()
    assert net.history[-1, "valid_loss"] == pytest.approx(valid, abs=1e-6)
    still = net_of(lr=0.0).fit(Pieces(micro), y=None)
    x, y = batch(1)
    train = F.cross_entropy(Tagger()(x)[y != -100], y[y != -100]).item()
    assert still.history[-1, "train_loss"] == pytest.approx(train, abs=1e-6)
    assert pickle.loads(pickle.dumps(net)).history[-1, "valid_loss"] == net.history[-1, "valid_loss"]


def test_plain_targets_and_classifiers() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(10, 3), torch.randint(0, 2, (10,))

    class Classifier(mg.integrations.SkorchMixin, skorch.NeuralNetClassifier):
        accumulate_batches = 2

    def trained(kind: Any, size: int, **options: Any) -> Any:
        torch.manual_seed(1)
        module = nn.Sequential(nn.Linear(3, 2), nn.Softmax(-1))
        given = {"batch_size": size, "max_epochs": 2, "lr": 0.5, "train_split": None, "verbose": 0}
        return kind(module, **given | options).fit(x.numpy(), y.numpy())

    ours = trained(Classifier, 4, criterion__reduction="none")
    theirs = trained(skorch.NeuralNetClassifier, 8)
    assert moved(ours.module_, theirs.module_) < 1e-6
    assert (ours.predict(x.numpy()) == theirs.predict(x.numpy())).all()


def test_a_criterion_that_reduces_is_refused() -> None:
    with pytest.raises(ValueError, match=r'the criterion reduces.*criterion__reduction="none"'):
        net_of(criterion__reduction="mean").fit(Pieces(cut(0, *batch(0), 4)), y=None)


def masked_collate(samples: list[Any]) -> Any:
    """Inputs under a mask, in a dict, as modules with named arguments take them."""
    ((x, y),) = samples
    known = y != -100
    return {"tokens": mg.masked(torch.where(known, x, 10**9), known)}, mg.masked(y.clamp(min=0), known)


@one_line("skorch", "masked and jagged inputs, also in dicts", "`mg.integrations.SkorchMixin`")
@pytest.mark.parametrize("collate_fn", [collate_jagged, masked_collate])
def test_masked_inputs(collate_fn: Any) -> None:
    batches, truth = [batch(seed) for seed in range(3)], Tagger()
    one_pass(truth, batches)
    micro = [piece for seed, whole in enumerate(batches) for piece in cut(seed, *whole, 4)]
    split = predefined_split(Pieces(micro))
    each = {"iterator_train__collate_fn": collate_fn, "iterator_valid__collate_fn": collate_fn}
    net = net_of(train_split=split, **each).fit(Pieces(micro), y=None)
    assert moved(net.module_.tagger, truth) < 1e-6
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    valid = F.cross_entropy(truth(x)[y != -100], y[y != -100]).item()
    assert net.history[-1, "valid_loss"] == pytest.approx(valid, abs=1e-6)
    found = list(net.forward_iter(Pieces(micro)))
    assert all(isinstance(part, mg.MaskedTensor) for part in found)


@refused("skorch", "`predict`, if predictions are partly unspecified", "`net.forward(X)`")
def test_predictions() -> None:
    torch.manual_seed(0)
    x, known = torch.randn(10, 3), torch.rand(10, 3) < 0.6
    known[:, 0] = True
    inputs = mg.masked(torch.where(known, x, torch.nan), known)
    y = mg.masked(torch.randn(10, 1), torch.rand(10, 1) < 0.5)

    class Regressor(mg.integrations.SkorchMixin, skorch.NeuralNetRegressor):
        pass

    net = Regressor(
        nn.Linear(3, 1),
        criterion=nn.MSELoss,
        criterion__reduction="none",
        train_split=None,
        verbose=0,
        max_epochs=1,
    ).fit(inputs, y)
    torch.testing.assert_close(
        torch.tensor(net.predict(inputs)), net.module_(inputs).filled(torch.nan).detach()
    )
    net.module_ = nn.Identity()
    assert torch.equal(net.forward(inputs).mask, known)
    with pytest.raises(ValueError, match=r"no place for entries that are unspecified.*net\.forward\(X\)"):
        net.predict(inputs)


def test_an_epoch_without_targets_has_no_mean() -> None:
    micro = cut(1, *batch(1), 3)
    nothing = [(x, torch.full_like(y, -100)) for x, y in micro]
    net = net_of(train_split=predefined_split(Pieces(nothing)), max_epochs=2).fit(Pieces(micro), y=None)
    for epoch in range(2):
        assert math.isnan(net.history[epoch, "valid_loss"])
        assert net.history[epoch, "train_loss"] > 0
    before = [param.clone() for param in net.module_.parameters()]
    net.set_params(train_split=None).partial_fit(Pieces(nothing), y=None)
    assert math.isnan(net.history[-1, "train_loss"])
    assert all(map(torch.equal, before, net.module_.parameters()))


@refused("skorch", "nets without the mixin", "`mg.integrations.SkorchMixin`")
def test_nets_without_the_mixin_refuse() -> None:
    x = mg.masked(torch.randn(6, 3), torch.rand(6, 3) > 0.3)
    module = nn.Sequential(nn.Linear(3, 2), nn.Softmax(-1))
    for kind in (skorch.NeuralNetRegressor, skorch.NeuralNetClassifier):
        net = kind(module, train_split=None, verbose=0, max_epochs=1).initialize()
        for call in (net.predict, net.predict_proba, net.forward):
            with pytest.raises(
                mg.UnsupportedOperationError, match=r"class Net\(mg\.integrations\.SkorchMixin"
            ):
                call(x)
        assert net.module_(x).mask.equal(x.mask.any(1, keepdim=True).expand(6, 2))
