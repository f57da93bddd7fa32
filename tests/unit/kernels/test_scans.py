"""masked_cumsum: torch.cumsum of each vector without its unspecified entries."""

from __future__ import annotations

import torch
from torch import Tensor

import maskgrad as mg
from tests.unit.kernels.bodies import cpu, reference
from tests.unit.kernels.masks import MaskedSuite

ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-2, torch.bfloat16: 1e-1}


class TestMaskedCumsum(MaskedSuite):
    kernel = "masked_cumsum"
    variants = ((False,), (True,))
    per_entry = True
    one_dim = True
    keeps = False
    rounding = ROUNDING

    def alone(self, x: Tensor, reverse: bool) -> Tensor:
        return x.flip(0).cumsum(0).flip(0) if reverse else x.cumsum(0)


def test_infinities_stay_on_their_side() -> None:
    values = torch.tensor([[1.0, torch.inf, 2.0, -torch.inf, 1.0], [torch.nan, 1.0, torch.nan, 2.0, 3.0]])
    mask = torch.tensor([[True] * 5, [False, True, True, True, False]])
    for body in (reference, cpu):
        found = body.masked_cumsum(values, mask, 1, False)
        inf, nan = torch.inf, torch.nan
        right = torch.tensor([[1.0, inf, inf, nan, nan], [0.0, 1.0, nan, nan, 0.0]])
        torch.testing.assert_close(found, right, equal_nan=True)


def test_the_line_runs_it() -> None:
    """``x.cumsum(1)``, in any dtype, against the same on a plain tensor of zeros."""
    values, mask = torch.randn(9, 40), torch.rand(9, 40) < 0.6
    leaf = torch.where(mask, values, torch.nan).requires_grad_()
    for dtype in (None, torch.float64):
        found = mg.masked(leaf, mask).cumsum(-1, dtype=dtype)
        expected = torch.where(mask, values, 0).cumsum(1, dtype=dtype)
        torch.testing.assert_close(found.filled(0.0), torch.where(mask, expected, 0))
        (grad,) = torch.autograd.grad(found.filled(0.0).sum(), leaf)
        right = torch.where(mask, mask.flip(1).cumsum(1).flip(1), 0).float()
        torch.testing.assert_close(grad, right)
