"""What stands in for PyTorch's LSTM while shapes are traced gives what PyTorch gives, shapes among it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from maskgrad.export import traced_shapes
from maskgrad.export.decompositions.recurrence import lstm_layer


@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("projection", [0, 2])
def test_a_layer_is_pytorchs(bias: bool, projection: int) -> None:
    module = nn.LSTM(4, 5, bias=bias, proj_size=projection)
    x, cell = torch.randn(6, 3, 4), torch.randn(3, 5)
    state = torch.randn(3, projection or 5)
    weights = [p.detach() for p in module.parameters()]
    for reverse in (False, True):
        output, final = lstm_layer(x, (state, cell), weights, bias, reverse)
        with torch.no_grad():
            expected, ends = module(x.flip(0) if reverse else x, (state[None], cell[None]))
        torch.testing.assert_close(output, expected.flip(0) if reverse else expected)
        for one, other in zip(final, ends, strict=True):
            torch.testing.assert_close(one, other[0])


def test_pytorch_has_its_own_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._decomp import decompositions

    before = decompositions.one_layer_lstm
    monkeypatch.setattr(traced_shapes, "_adds_a_dimension", lambda: True)
    with pytest.raises(KeyError), traced_shapes.right_shapes():  # noqa: PT012
        assert decompositions.one_layer_lstm is lstm_layer
        raise KeyError
    assert decompositions.one_layer_lstm is before
