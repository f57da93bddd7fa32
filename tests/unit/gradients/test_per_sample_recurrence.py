"""Recurrent networks written out, against PyTorch's own and against the loop over samples."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from tests.unit.gradients.sample_loop import loop, smooth

D = torch.float64


class First(nn.Module):
    """The states after a network or cell; time first or samples first."""

    def __init__(self, inner: nn.Module, batch_first: bool = True) -> None:
        super().__init__()
        self.inner, self.batch_first = inner.double(), batch_first

    def forward(self, x: Tensor) -> Any:
        """Samples first, x (B, T, I) or (B, I)."""
        if self.batch_first:
            return self.inner(x)
        return self.inner(x.transpose(0, 1))[0].transpose(0, 1)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": False},
        {"num_layers": 2, "bidirectional": True},
        {"num_layers": 3},
        {"proj_size": 2},
        {"nonlinearity": "relu"},
    ],
    ids=str,
)
@pytest.mark.parametrize("batch_first", [True, False])
def test_networks_equal_the_loop(kind: Any, options: dict[str, Any], batch_first: bool) -> None:
    if "proj_size" in options and kind is not nn.LSTM:
        options = {"num_layers": 2}
    if "nonlinearity" in options and kind is not nn.RNN:
        options = {"bidirectional": True}
    model = First(kind(3, 4, batch_first=batch_first, **options), batch_first)
    x = torch.randn(5, 6, 3, dtype=D)
    expected = loop(model, smooth, x)
    found = mg.per_sample_grad(model, smooth, x, method="batched")
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name])
    squares = torch.stack([g.flatten(1).square().sum(1) for g in expected.values()]).sum(0)
    torch.testing.assert_close(mg.per_sample_grad_norms(model, smooth, x), squares.sqrt())


@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
@pytest.mark.parametrize("bias", [True, False])
def test_cells_equal_the_loop(cell: Any, bias: bool) -> None:
    model = First(cell(3, 4, bias=bias))
    x = torch.randn(5, 3, dtype=D)
    expected = loop(model, smooth, x)
    for name, gradient in mg.per_sample_grad(model, smooth, x, method="batched").items():
        torch.testing.assert_close(gradient, expected[name])


def test_states_that_are_given() -> None:
    model, x = nn.LSTM(3, 4, batch_first=True).double(), torch.randn(5, 2, 3, dtype=D)

    class Started(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.start = model, nn.Parameter(torch.randn(1, 1, 4, dtype=D))

        def forward(self, x: Tensor) -> Any:
            return self.inner(x, (self.start, self.start.tanh()))[1]

    started = Started()
    expected = loop(started, smooth, x)
    for name, gradient in mg.per_sample_grad(started, smooth, x, method="batched").items():
        torch.testing.assert_close(gradient, expected[name])


def test_dropout_between_layers_is_drawn() -> None:
    model = nn.GRU(3, 8, num_layers=2, dropout=0.5, batch_first=True)
    x = torch.randn(1, 4, 3).expand(2, 4, 3)
    found = mg.per_sample_grad(model, lambda y: y[0].sum(), x, method="batched")["weight_ih_l1"]
    assert not torch.equal(found[0], found[1])
    same = mg.per_sample_grad(model, lambda y: y[0].sum(), x, method="batched", randomness="same")
    assert torch.equal(same["weight_ih_l1"][0], same["weight_ih_l1"][1])
    assert not mg.per_sample_grad(model.eval(), lambda y: y[0].sum(), x)["weight_ih_l1"].diff(dim=0).any()
