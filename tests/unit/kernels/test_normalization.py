"""standardized: the specified entries of each group, as PyTorch standardizes them alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maskgrad import kernels
from tests.unit.kernels.masks import MaskedSuite

EPS = 0.1
ROUNDING = {torch.float64: 1e-11, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


class TestStandardized(MaskedSuite):
    kernel = "standardized"
    variants = ((EPS, True), (EPS, False))
    per_entry = True
    keeps = False
    widens = True
    rounding = ROUNDING

    def operands(self, shape: Sequence[int], where: Any, variant: Any) -> tuple[Tensor, ...]:
        return (torch.randn(tuple(shape)) + 1,)

    def alone(self, x: Tensor, eps: float, centered: bool) -> tuple[Tensor, ...]:
        mean = x.mean() if centered else x.new_zeros(())
        variance = (x - mean).square().mean()
        scale = (variance + eps).rsqrt()
        number = torch.tensor(float(len(x)), dtype=torch.float64)
        return (x - mean) * scale, mean, variance, scale, number

    def nothing(self, dtype: torch.dtype, *variant: Any) -> tuple[float, ...]:
        return (0.0, 0.0, 0.0, 1.0)


def test_a_large_mean_costs_no_more_digits_than_in_torch() -> None:
    values, mask = torch.randn(50, 3000) + 3e4, torch.ones(50, 3000, dtype=torch.bool)
    exact = F.layer_norm(values.double(), (3000,))
    ours, *_ = kernels.standardized(values, mask, (1,), 1e-5)
    assert (ours - exact).abs().max() <= (F.layer_norm(values, (3000,)) - exact).abs().max() * 1.1
