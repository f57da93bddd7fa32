"""Blocks on the diagonal of a full matrix."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from maskgrad.gradients.backward_passes import BackwardPasses
from maskgrad.gradients.batch_nodes import input_nodes


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_matrix_that_mixes_samples(create_graph: bool) -> None:
    mixing = torch.randn(5, 5, dtype=torch.float64)
    x = torch.randn(5, 2, 3, dtype=torch.float64, requires_grad=True)
    y = (mixing @ x.sum(2)) ** 2
    passes = BackwardPasses(y, input_nodes(x)[0], create_graph)
    sent = torch.randn(4, 5, 2, dtype=torch.float64)
    (found,) = passes.diagonal_blocks(lambda start, stop: sent[start:stop], 4)
    assert found is not None
    assert found.requires_grad == create_graph
    slopes = 2 * (mixing @ x.detach().sum(2)) * mixing.diagonal()[:, None]
    torch.testing.assert_close(found.detach(), (sent * slopes)[..., None].expand(4, 5, 2, 3))


class _Sparing(torch.autograd.Function):
    """Gives no gradient where it is zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor | None:  # type: ignore[override]
        return 2 * gradient if bool(gradient[0].any()) else None


def test_gradients_that_are_missing_are_zero() -> None:
    x = torch.ones(3, 2, requires_grad=True)
    passes = BackwardPasses(_Sparing.apply(x), input_nodes(x)[0])
    (found,) = passes.diagonal_blocks(lambda start, stop: torch.ones(stop - start, 3, 2), 2)
    assert found is not None
    assert found.tolist() == [[[2.0, 2.0], [0.0, 0.0], [0.0, 0.0]]] * 2
