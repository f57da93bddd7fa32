"""Functions of torch.autograd that know no MaskedTensors refuse them instead of losing the gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad
from torch.utils.checkpoint import checkpoint

import maskgrad as mg
from tests.poison import gradient, leaf, poisoned


class Twice(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Any) -> Any:
        return x * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient * 2


def test_masked_tensors_are_refused() -> None:
    x, words = poisoned([1.0, None], requires_grad=True), "derive Twice from mg.Function"
    for call in (lambda: Twice.apply(x), lambda: Twice.apply(leaf(1.0), x), lambda: Twice.apply(x=x)):
        with pytest.raises(mg.UnsupportedOperationError, match=words):
            call()
    for fullgraph in (False, True):
        with pytest.raises(Exception, match=words):
            torch.compile(lambda v: Twice.apply(v) * 1, backend="eager", fullgraph=fullgraph)(x)
    plain = leaf(1.0, 2.0)  # as before
    assert gradient(Twice.apply(plain), plain).tolist() == [2.0, 2.0]
    assert grad(lambda v: Twice.apply(v).sum())(plain.detach()).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("as_argument", [False, True])
def test_reentrant_checkpoints_are_refused(as_argument: bool) -> None:
    data, mask = torch.ones(2, requires_grad=True), torch.tensor([True, False])
    x = {"x": mg.masked(data, mask)} if as_argument else data
    with pytest.raises(mg.UnsupportedOperationError, match="Pass use_reentrant=False"):
        checkpoint(lambda v: v["x"].sum() if as_argument else mg.masked(v, mask), x, use_reentrant=True)
    assert checkpoint(lambda v: v * 2, data, use_reentrant=True).requires_grad
