"""masked_layer_norm and masked_batch_norm: PyTorch's of each row or channel, of what is left of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maskgrad import kernels
from maskgrad.kernels import use_kernels
from tests.unit.kernels.masks import MaskedSuite

EPS = 0.1
ROUNDING = {torch.float64: 1e-11, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def statistics(x: Tensor, centered: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, variance and reciprocal deviation, without a gradient."""
    x = x.detach()
    mean = x.mean() if centered else x.new_zeros(())
    variance = (x - mean).square().mean()
    return mean, variance, (variance + EPS).rsqrt()


class TestMaskedLayerNorm(MaskedSuite):
    """The last dimensions are standardized together; weight and bias have their shape."""

    kernel = "masked_layer_norm"
    variants = ((True, True), (False, True), (True, False))  # centered, with weight and bias
    per_entry = True
    keeps = False
    traced = False
    rounding = ROUNDING

    def takes(self, shape: tuple[int, ...], dim: tuple[int, ...]) -> bool:
        return bool(dim) and dim == tuple(range(len(shape) - len(dim), len(shape)))

    def operands(self, shape: Sequence[int], where: Any, variant: Any) -> tuple[Tensor, ...]:
        values = torch.randn(tuple(shape)) + 1
        row = tuple(shape)[-len(where[1]) :]
        return (values, torch.randn(row), torch.randn(row)) if variant[1] else (values,)

    def call(self, operands: Sequence[Tensor], where: Any, variant: tuple[Any, ...]) -> Any:
        values, weight, bias = operands if variant[1] else (*operands, None, None)
        mask, dim = where
        return kernels.masked_layer_norm(values, mask, len(dim), weight, bias, EPS, variant[0])

    def alone(self, x: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        *parameters, centered, affine = rest
        weight, bias = parameters if affine else (None, None)
        if centered:
            out = F.layer_norm(x, x.shape, weight, bias, EPS)
        else:
            out = F.rms_norm(x, x.shape, weight, EPS) + (0 if bias is None else bias)
        mean, _, scale = statistics(x, centered)
        return out, mean, scale, torch.tensor(float(len(x)), dtype=torch.float64)

    def nothing(self, dtype: torch.dtype, *variant: Any) -> tuple[float, ...]:
        return (0.0, 0.0, 1.0)


class TestMaskedBatchNorm(MaskedSuite):
    """Weight and bias have an entry for each group, or vary within one (group normalisation)."""

    kernel = "masked_batch_norm"
    variants = (("of groups",), ("varying",), ("none",))
    per_entry = True
    keeps = False
    traced = False
    rounding = ROUNDING

    def takes(self, shape: tuple[int, ...], dim: tuple[int, ...]) -> bool:
        return bool(shape)

    def operands(self, shape: Sequence[int], where: Any, variant: Any) -> tuple[Tensor, ...]:
        values = torch.randn(tuple(shape)) + 1
        dims = {d % len(shape) for d in where[1]}
        size = [1 if d in dims else n for d, n in enumerate(shape)]
        if variant == ("varying",) and dims:
            size[max(dims)] = shape[max(dims)]
        return (values, torch.randn(size), torch.randn(size)) if variant != ("none",) else (values,)

    def call(self, operands: Sequence[Tensor], where: Any, variant: tuple[Any, ...]) -> Any:
        values, *parameters = operands
        return kernels.masked_batch_norm(values, *where, *(parameters or (None, None)), EPS)

    def alone(self, x: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        *parameters, _ = rest
        weight, bias = parameters or (1.0, 0.0)
        out = (x - x.mean()) * (x.var(correction=0) + EPS).rsqrt() * weight + bias
        return out, *statistics(x), torch.tensor(float(len(x)), dtype=torch.float64)

    def nothing(self, dtype: torch.dtype, *variant: Any) -> tuple[float, ...]:
        return (0.0, 0.0, 0.0, 1.0)

    def by_torch(self, operands: Sequence[Tensor], where: Any, variant: tuple[Any, ...]) -> bool:
        return variant == ("varying",)


def test_an_infinite_scale_or_weight_reaches_only_what_is_specified() -> None:
    """A row of equal entries, and no eps: torch's result there is NaN, and so is the gradient of the weights it met."""
    values, mask = torch.randn(30, 20), torch.rand(30, 20) < 0.7
    values[4], mask[4, :10], mask[4, 10:], mask[5] = 1.0, False, True, False
    row = torch.randn(20)
    channels, grad = torch.randn(30, 1), torch.randn(30, 20)
    channels[5] = math.inf
    for function, weight in (
        (lambda x, w: kernels.masked_layer_norm(x, mask, 1, w, row, 0.0)[0], row),
        (lambda x, w: kernels.masked_batch_norm(x, mask, (1,), w, channels.clamp(max=1), 0.0)[0], channels),
    ):
        outcomes = []
        for body in ("reference", "cpu"):
            x, w = values.clone().requires_grad_(), weight.clone().requires_grad_()
            with use_kernels(body):
                out = function(x, w)
                slopes = torch.autograd.grad(out, (x, w), grad)
            assert not out.detach().isnan().all()
            assert not slopes[0][~mask].count_nonzero()
            outcomes.append((out.detach(), *slopes))
        torch.testing.assert_close(*outcomes, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_a_gradient_that_is_one_number() -> None:
    values, mask = torch.randn(30, 40, 20), torch.rand(30, 40, 20) < 0.5
    for function in (
        lambda x: kernels.masked_batch_norm(x, mask, (0, 2))[0],
        lambda x: kernels.masked_layer_norm(x, mask, 1)[0],
    ):
        found = []
        for body in ("reference", "cpu"):
            leaf = values.clone().requires_grad_()
            with use_kernels(body):
                function(leaf).sum().backward(torch.tensor(2.0))
            found.append(leaf.grad)
        torch.testing.assert_close(*found, rtol=0, atol=1e-5)


def test_a_large_mean_costs_no_more_digits_than_in_torch() -> None:
    values, mask = torch.randn(50, 3000) + 3e4, torch.ones(50, 3000, dtype=torch.bool)
    exact = F.layer_norm(values.double(), (3000,))
    ours, _, _, _ = kernels.masked_layer_norm(values, mask, 1)
    assert (ours - exact).abs().max() <= (F.layer_norm(values, (3000,)) - exact).abs().max() * 1.1
