"""Losses of two tensors: PyTorch's on the specified entries alone, both directions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from maskgrad import kernels
from maskgrad.kernels import use_kernels
from tests.unit.kernels.bodies import cpu, reference
from tests.unit.kernels.masks import MaskedSuite

#: Name -> kind and numbers of a loss of two tensors, and PyTorch's.
LOSSES: dict[str, tuple[str, tuple[float, ...], Any]] = {
    "mse": ("distance", (1.0, math.inf, 1.0, 0.0), F.mse_loss),
    "l1": ("distance", (0.0, 0.0, 1.0, 0.0), F.l1_loss),
    "huber": ("distance", (0.5, 0.7, 0.7, 0.245), lambda x, t, **o: F.huber_loss(x, t, delta=0.7, **o)),
    "smooth_l1": ("distance", (1.0, 0.5, 1.0, 0.25), lambda x, t, **o: F.smooth_l1_loss(x, t, beta=0.5, **o)),
    "logits": ("logits", (), F.binary_cross_entropy_with_logits),
    "probabilities": ("probabilities", (), F.binary_cross_entropy),
}


class TestMaskedLoss(MaskedSuite):
    """Each entry is its own; how they are grouped does not matter."""

    kernel = "masked_loss"
    variants = tuple((name,) for name in LOSSES)
    per_entry = True
    keeps = False
    ties = False
    special_numbers = ()
    slack = 20.0

    def takes(self, shape: tuple[int, ...], dim: tuple[int, ...]) -> bool:
        return dim == tuple(range(len(shape)))

    def operands(self, shape: Sequence[int], where: Any, variant: tuple[str]) -> tuple[Tensor, ...]:
        shape = tuple(shape)
        probable = variant[0] == "probabilities"
        input = torch.rand(shape).clamp(0.05, 0.95) if probable else torch.randn(shape) * 2
        return input, torch.rand(shape) if LOSSES[variant[0]][0] != "distance" else torch.randn(shape)

    def call(self, operands: Sequence[Tensor], where: Any, variant: tuple[str]) -> Any:  # type: ignore[override]
        return getattr(kernels, self.kernel)(*operands, where[0], *LOSSES[variant[0]][:2])

    def alone(self, x: Tensor, t: Tensor, name: str) -> Any:
        return LOSSES[name][2](x, t, reduction="none")

    test_mistakes_in_the_mask_are_named = None  # losses look for them
    test_what_is_not_finite_surfaces_as_in_torch = None  # below: squares of float32 overflow


class TestMaskedLossSum(TestMaskedLoss):
    kernel = "masked_loss_sum"
    per_entry = False
    widens = True

    def alone(self, x: Tensor, t: Tensor, name: str) -> Any:
        return LOSSES[name][2](x, t, reduction="sum"), torch.tensor(float(len(x)), dtype=torch.float64)

    def groups(self, where: Any, shape: Sequence[int]) -> tuple[Tensor, list[int], list[int]]:
        index, sizes, _ = super().groups(where, shape)
        return index, sizes, []


@pytest.mark.parametrize("name", list(LOSSES))
def test_what_is_not_finite_and_specified_surfaces_as_in_torch(name: str) -> None:
    if name == "probabilities":
        input, target = (
            torch.tensor([0.0, 1.0, 0.0, 1.0, 1e-30, 1e-40]),
            torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0, 0.5]),
        )
    else:
        input = torch.tensor([math.nan, math.inf, -math.inf, 1e38, 88.0, -88.0, -1e38, 0.0])
        target = torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0])
    input, target = (
        input.repeat(5).requires_grad_(),
        target.repeat(5),
    )  # torch treats vectors and their rest alike
    mask = torch.ones_like(target, dtype=torch.bool)
    expected = LOSSES[name][2](input, target, reduction="none")
    with use_kernels("cpu"):
        found = kernels.masked_loss(input, target, mask, *LOSSES[name][:2])
        pair = [
            torch.autograd.grad(y, input, torch.ones_like(y), retain_graph=True) for y in (found, expected)
        ]
    torch.testing.assert_close(found, expected, equal_nan=True)
    torch.testing.assert_close(*pair, equal_nan=True)


@pytest.mark.parametrize("body", ["reference", "cpu"])
@pytest.mark.parametrize("kernel", [kernels.masked_loss, kernels.masked_loss_sum])
@pytest.mark.parametrize(("input", "target"), [(1.5, 0.5), (-0.1, 0.5), (0.5, 1.5), (math.nan, 0.5)])
def test_what_is_no_probability_is_refused_where_it_is_specified(kernel, body, input, target):
    x, t = torch.full((9,), 0.5), torch.full((9,), 0.5)
    x[4], t[4] = input, target
    mask = torch.ones(9, dtype=torch.bool)
    with use_kernels(body):
        with pytest.raises(RuntimeError, match="should be between 0 and 1"):
            kernel(x, t, mask, "probabilities", ())
        mask[4] = False
        kernel(x, t, mask, "probabilities", ())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_sum_of_halves_outgrows_them(dtype):
    input, target = torch.full((70_000,), 10.0, dtype=dtype), torch.zeros(70_000, dtype=dtype)
    total, _ = kernels.masked_loss_sum(
        input, target, torch.ones(70_000, dtype=torch.bool), *LOSSES["mse"][:2]
    )
    assert total.item() == 7_000_000


def test_mixed_dtypes_run_the_reference():
    x, t, mask = torch.randn(50), torch.randn(50, dtype=torch.float64), torch.rand(50) < 0.5
    for body in (reference, cpu):
        found = body.masked_loss(x, t, mask, *LOSSES["mse"][:2])
        torch.testing.assert_close(found, torch.where(mask, (x - t) ** 2, 0).float())


def numbers(dtype):
    """Numbers from the least subnormal one to the largest, and all between 0 and 2 that matter."""
    limits = torch.finfo(dtype)
    powers = torch.logspace(
        -44 if dtype == torch.float32 else -320, 38 if dtype == torch.float32 else 308, 20_001
    )
    return torch.cat(
        [torch.linspace(0, 2, 20_001).to(dtype), powers.to(dtype), torch.tensor([limits.max]).to(dtype)]
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_logarithms(dtype):
    """The terms of a binary cross entropy without target, before they are limited to 100."""
    x = numbers(dtype)
    x = x[x <= 1]
    mask, none = torch.ones_like(x, dtype=torch.bool), torch.zeros_like(x)
    for target, exact in ((none + 1, -x.double().log()), (none, -torch.log1p(-x.double()))):
        found = cpu.masked_loss(x, target, mask, "probabilities", ())
        wanted = exact.clamp(max=100)
        bound = torch.finfo(dtype).eps
        assert ((found.double() - wanted).abs() <= 3 * bound * wanted + bound * 0.5).all()
