"""Functions with derivatives of their own, for the tests of ``mg.Function``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import maskgrad as mg
from tests.poison import on


def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """A ``setup_context``."""
    ctx.save_for_backward(*inputs)


def made_of(forward: Any, backward: Any, setup: Any = None, **attributes: Any) -> type[mg.Function]:
    """A class of its own."""
    methods = {"forward": forward, "backward": backward} | ({"setup_context": setup} if setup else {})
    static = {name: staticmethod(method) for name, method in methods.items()}
    return type("Own", (mg.Function,), {"pattern": "intersection", **static, **attributes})


class Cube(mg.Function):
    """With setup_context, a tangent and a derivative that is differentiable."""

    pattern = "intersection"

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        keep(ctx, inputs, output)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * gradient

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * tangent


class Reciprocal(mg.Function):
    """Of which 0 would be a bad filler."""

    pattern = "intersection"
    filler = 1.0

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return 1 / x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (y,) = ctx.saved_tensors
        return -y * y * gradient


class Power(mg.Function):
    """With an intermediate result for second derivatives, a second tensor and a constant."""

    pattern = "intersection"

    @staticmethod
    def forward(x: Tensor, weight: Tensor, exponent: int = 2) -> Any:
        inner = x ** (exponent - 1)
        return inner * x * weight, inner

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, weight, ctx.exponent = inputs
        ctx.save_for_backward(x, weight, output[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, gradient_of_inner: Tensor) -> Any:
        x, weight, inner = ctx.saved_tensors
        n = ctx.exponent
        for_x = n * inner * weight * gradient + (n - 1) * x ** (n - 2) * gradient_of_inner
        return for_x, inner * x * gradient, None


class RowSum(mg.Function):
    """Whose pattern is a rule of its own."""

    @staticmethod
    def pattern(mask: Tensor, dim: int) -> Tensor:
        return mask.any(dim)

    @staticmethod
    def forward(x: Tensor, dim: int) -> Tensor:
        return x.sum(dim)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, ctx.dim = inputs
        ctx.shape = x.shape

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient.unsqueeze(ctx.dim).expand(ctx.shape), None


class Undeclared(mg.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient * 2


def sparse(layout: torch.layout) -> mg.MaskedTensor:
    plain = torch.tensor([[1.0, 2.0, 0.0, 0.0], [0.0, 0.0, 3.0, 0.0]]).double()
    mask = on([1, 1, 0, 0], [0, 0, 1, 1])
    block = (1, 2) if layout in (torch.sparse_bsr, torch.sparse_bsc) else None
    return mg.masked(plain, mask).to_sparse(layout, blocksize=block)
