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
    ctx.save_for_forward(*inputs)


def made_of(forward: Any, backward: Any, setup: Any = None, **attributes: Any) -> type[mg.Function]:
    """A class of its own."""
    methods = {"forward": forward, "backward": backward} | ({"setup_context": setup} if setup else {})
    static = {name: staticmethod(method) for name, method in methods.items()}
    return type("Own", (mg.Function,), {"pattern": "intersection", **static, **attributes})


def times(ctx: Any, gradient: Tensor) -> Any:
    (x,) = ctx.saved_tensors
    return 3 * x**2 * gradient


#: With a tangent, and a derivative that is differentiable.
Cube = made_of(lambda x: x**3, times, keep, jvp=staticmethod(times))


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


def sparse(layout: torch.layout) -> mg.MaskedTensor:
    plain = torch.tensor([[1.0, 2.0, 0.0, 0.0], [0.0, 0.0, 3.0, 0.0]]).double()
    mask = on([1, 1, 0, 0], [0, 0, 1, 1])
    block = (1, 2) if layout in (torch.sparse_bsr, torch.sparse_bsc) else None
    return mg.masked(plain, mask).to_sparse(layout, blocksize=block)
