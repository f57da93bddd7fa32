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


class OldStyle(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, by: Any = 2) -> Any:
        ctx.by = by
        return x * by

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient * ctx.by, None


class NewStyle(torch.autograd.Function):
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


@pytest.mark.parametrize("function", [OldStyle, NewStyle])
def test_masked_tensors_are_refused(function: Any) -> None:
    x, words = poisoned([1.0, None], requires_grad=True), rf"derive {function.__name__} from mg.Function"
    for call in (
        lambda: function.apply(x),
        lambda: function.apply(leaf(1.0), x),
        lambda: function.apply(x=x),
    ):
        with pytest.raises(mg.UnsupportedOperationError, match=words):
            call()
    with pytest.raises(Exception, match=words):
        torch.compile(lambda v: function.apply(v) * 1, backend="eager", fullgraph=True)(x)
    with pytest.raises(TypeError, match=words):
        torch.compile(lambda v: function.apply(v) * 1, backend="eager")(x)


def test_plain_tensors_are_served_as_before() -> None:
    x = leaf(1.0, 2.0)
    assert gradient(OldStyle.apply(x, 3), x).tolist() == [3.0, 3.0]
    assert gradient(NewStyle.apply(x), x).tolist() == [2.0, 2.0]
    assert grad(lambda v: NewStyle.apply(v).sum())(x.detach()).tolist() == [2.0, 2.0]
    with pytest.raises(RuntimeError, match="setup_context"):
        grad(lambda v: OldStyle.apply(v).sum())(x.detach())


@pytest.mark.parametrize("as_argument", [False, True])
def test_reentrant_checkpoints_are_refused(as_argument: bool) -> None:
    data, mask = torch.ones(2, requires_grad=True), torch.tensor([True, False])
    x = {"x": mg.masked(data, mask)} if as_argument else data
    with pytest.raises(mg.UnsupportedOperationError, match="Pass use_reentrant=False"):
        checkpoint(lambda v: v["x"].sum() if as_argument else mg.masked(v, mask), x, use_reentrant=True)
    assert checkpoint(lambda v: v * 2, data, use_reentrant=True).requires_grad
