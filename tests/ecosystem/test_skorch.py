"""skorch: refused data, and the recipe of its page, whose history counts entries; its steps: test_random_splits.py."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import skorch
import torch
from skorch.callbacks import GradientNormClipping
from skorch.helper import predefined_split
from torch import nn
from torch.nn import functional as F

import maskgrad as mg
from tests.ecosystem.micro_batches import Tagger, batch, cut, recipe


class Scores(nn.Module):
    """Classes in dimension 1, where PyTorch's losses want them."""

    def __init__(self) -> None:
        super().__init__()
        self.tagger = Tagger()

    def forward(self, tokens: Any) -> Any:
        return self.tagger(tokens).movedim(-1, 1)


def pieces(micro: list[Any]) -> Any:
    """A data set of micro-batches; skorch takes a list for one input with several parts."""
    return torch.utils.data.Subset(micro, range(len(micro)))


#: A sample of the data set is a micro-batch.
collate = operator.itemgetter(0)


def net_of(every: int, clip: float, lr: float = 0.5, train_split: Any = None) -> Any:
    net = recipe("skorch_net", "Net")(
        Scores,
        criterion=nn.CrossEntropyLoss,
        criterion__reduction="none",
        optimizer=torch.optim.SGD,
        lr=lr,
        batch_size=1,
        max_epochs=1,
        train_split=train_split,
        verbose=0,
        iterator_train__collate_fn=collate,
        iterator_valid__collate_fn=collate,
        callbacks=[GradientNormClipping(clip)],
    )
    net.every = every
    return net


def test_epochs_count_entries() -> None:
    split = predefined_split(pieces(cut(2, *batch(2), 3)))
    net = net_of(4, 0.3, lr=0.0, train_split=split).fit(pieces(cut(1, *batch(1), 6)), y=None)
    for name, (x, y) in {"train_loss": batch(1), "valid_loss": batch(2)}.items():
        truth = F.cross_entropy(Tagger()(x)[y != -100], y[y != -100]).item()
        assert net.history[-1, name] == pytest.approx(truth, abs=1e-6)


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
