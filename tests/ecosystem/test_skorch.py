"""skorch: the recipe of its page, against one pass over the whole batch."""

from __future__ import annotations

from typing import Any

import pytest
import skorch
import torch
from skorch.callbacks import GradientNormClipping
from skorch.helper import predefined_split
from torch import nn
from torch.nn import functional as F

import maskgrad as mg
from tests.ecosystem.micro_batches import Tagger, batch, cut, moved, one_pass, recipe
from tests.ecosystem.rows import refused


class Scores(nn.Module):
    """Classes in dimension 1, where PyTorch's losses want them."""

    def __init__(self) -> None:
        super().__init__()
        self.tagger = Tagger()

    def forward(self, tokens: Any) -> Any:
        return self.tagger(tokens).movedim(-1, 1)


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
    return samples[0]


def net_of(every: int = 4, **changes: Any) -> Any:
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
    net = recipe("skorch_net", "Net")(Scores, **options | changes)
    net.every = every
    return net


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


@refused("skorch", "MaskedTensors as data", "`mg.masked(x, x != padding)` in the module")
def test_masked_tensors_refuse() -> None:
    x = mg.masked(torch.randn(6, 3), torch.rand(6, 3) > 0.3)
    module = nn.Sequential(nn.Linear(3, 2), nn.Softmax(-1))
    for kind in (skorch.NeuralNetRegressor, skorch.NeuralNetClassifier):
        net = kind(module, train_split=None, verbose=0, max_epochs=1).initialize()
        for call in (net.predict, net.predict_proba, net.forward):
            with pytest.raises(
                mg.UnsupportedOperationError, match=r"mg\.masked\(x, x != padding\).*get_loss"
            ):
                call(x)
        assert net.module_(x).mask.equal(x.mask.any(1, keepdim=True).expand(6, 2))
