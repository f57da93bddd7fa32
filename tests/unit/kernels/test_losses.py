"""Losses of a difference: PyTorch's on the specified entries alone, both directions."""

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
from tests.unit.kernels.masks import MaskedSuite
from tests.unit.kernels.suite import run

#: Name -> the numbers of a loss, and PyTorch's function.
LOSSES: dict[str, tuple[tuple[float, ...], Any]] = {
    "mse": ((1.0, math.inf, 1.0, 0.0), F.mse_loss),
    "l1": ((0.0, 0.0, 1.0, 0.0), F.l1_loss),
    "huber": ((0.5, 0.7, 0.7, 0.245), lambda x, t, **o: F.huber_loss(x, t, delta=0.7, **o)),
    "smooth_l1": ((1.0, 0.5, 1.0, 0.25), lambda x, t, **o: F.smooth_l1_loss(x, t, beta=0.5, **o)),
}


class TestMaskedDistanceSum(MaskedSuite):
    """Everything is one group."""

    kernel = "masked_distance_sum"
    variants = tuple((name,) for name in LOSSES)
    keeps = False
    slack = 20.0
    widens = True

    def operands(self, shape: tuple[int, ...]) -> tuple[Tensor, ...]:
        return torch.randn(shape) * 2, torch.randn(shape)

    def call(self, operands: Sequence[Tensor], where: Any, variant: tuple[str]) -> Any:  # type: ignore[override]
        return kernels.masked_distance_sum(*operands, where[0], LOSSES[variant[0]][0])

    test_mistakes_in_the_mask_are_named = None  # losses look for them
    test_what_is_not_finite_surfaces = None  # below: squares of float32 overflow


@pytest.mark.parametrize("body", ["reference", "cpu"])
@pytest.mark.parametrize("name", list(LOSSES))
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e38, 0.0])
@pytest.mark.own_dtype("bfloat16", "float16")
def test_what_is_not_finite_and_specified_surfaces_as_in_torch(body: str, name: str, value: float) -> None:
    input, target = torch.full((9,), 0.5), torch.zeros(9)
    input[4] = value
    leaves = [input.clone().requires_grad_() for _ in range(2)]
    mask, (numbers, plain) = torch.ones(9, dtype=torch.bool), LOSSES[name]
    with use_kernels(body):
        found, _ = kernels.masked_distance_sum(leaves[0], target, mask, numbers)
        expected = plain(leaves[1], target, reduction="sum")
        torch.testing.assert_close(found, expected, equal_nan=True)
        pair = [torch.autograd.grad(y, x) for y, x in zip((found, expected), leaves, strict=True)]
    torch.testing.assert_close(*pair, equal_nan=True)


@pytest.mark.parametrize("body", ["reference", "cpu"])
def test_the_sum_of_halves_outgrows_them_and_dtypes_mix(body: str) -> None:
    x, t, mask = torch.full((70_000,), 10.0), torch.zeros(70_000), torch.ones(70_000, dtype=torch.bool)
    for one, other in ((torch.float16,) * 2, (torch.bfloat16,) * 2, (torch.float32, torch.float64)):
        total, _ = run(body, "masked_distance_sum", x.to(one), t.to(other), mask, LOSSES["mse"][0])
        assert total.item() == 7_000_000
