"""How many passes are made at once, and what happens where that is impossible."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from maskgrad.gradients.backward_passes import BackwardPasses, joined
from maskgrad.gradients.batch_nodes import input_nodes


def passes(y: Tensor, x: Tensor, **manner: Any) -> BackwardPasses:
    return BackwardPasses(y, input_nodes(x)[0], **manner)


class _Counted(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        _Counted.calls += 1
        return gradient


@pytest.mark.parametrize(("features", "at_once"), [(4, 8), (400_000, 1)])
def test_small_gradients_travel_together_and_large_ones_alone(features: int, at_once: int) -> None:
    x = torch.randn(3, features, requires_grad=True)
    y = _Counted.apply(x)[:, :4].sum(1, keepdim=True) * torch.ones(8)
    _Counted.calls = 0
    (found,) = passes(y, x).all(lambda start, stop: torch.ones(stop - start, 3, 8), 8)
    assert _Counted.calls == 8 // at_once
    assert found is not None
    assert found.shape == (8, 3, features)


@pytest.mark.parametrize(("chunk_size", "calls"), [(1, 7), (2, 4), (3, 3), (7, 1), (100, 1)])
def test_chunks(chunk_size: int, calls: int) -> None:
    x = torch.randn(3, 2, requires_grad=True)
    y = _Counted.apply(x)
    _Counted.calls = 0
    passes(y, x, chunk_size=chunk_size).all(lambda start, stop: torch.ones(stop - start, 3, 2), 7)
    assert _Counted.calls == calls


class _Looks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        if float(gradient.sum()) == 13.0:
            raise ArithmeticError("thirteen")
        return gradient * 2


def test_what_cannot_be_done_together_is_done_in_turn() -> None:
    x = torch.randn(3, 2, requires_grad=True)
    one = passes(_Looks.apply(x), x)
    (found,) = one.all(
        lambda start, stop: torch.arange(start, stop).reshape(-1, 1, 1).expand(-1, 3, 2) * 1.0, 5
    )
    assert found is not None
    assert found[:, 0, 0].tolist() == [0.0, 2.0, 4.0, 6.0, 8.0]


def test_an_error_of_the_graph_is_not_hidden() -> None:
    x = torch.randn(1, 1, requires_grad=True)
    with pytest.raises(ArithmeticError, match="thirteen"):
        passes(_Looks.apply(x), x).all(lambda start, stop: torch.full((stop - start, 1, 1), 13.0), 5)


def test_pieces_that_are_missing_are_zero() -> None:
    piece = torch.ones(2, 3, 4)
    assert joined([(2, None), (1, None)]) is None
    found = joined([(2, None), (2, piece), (1, None)])
    assert found is not None
    assert found[:, 0, 0].tolist() == [0.0, 0.0, 1.0, 1.0, 0.0]
