"""Losses of a difference: PyTorch's on the specified entries alone, both directions."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from maskgrad.kernels import masked_distance_sum as distance_sum
from tests.unit.kernels.masks import LAYOUTS, soiled
from tests.unit.kernels.suite import DTYPES, GARBAGE, ROUNDING

#: Name -> the numbers of a loss, and PyTorch's function.
LOSSES: dict[str, tuple[tuple[float, ...], Any]] = {
    "mse": ((1.0, math.inf, 1.0, 0.0), F.mse_loss),
    "l1": ((0.0, 0.0, 1.0, 0.0), F.l1_loss),
    "huber": ((0.5, 0.7, 0.7, 0.245), lambda x, t, **o: F.huber_loss(x, t, delta=0.7, **o)),
    "smooth_l1": ((1.0, 0.5, 1.0, 0.25), lambda x, t, **o: F.smooth_l1_loss(x, t, beta=0.5, **o)),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", list(LOSSES))
def test_values_and_gradients_are_those_of_the_specified_entries(name: str, dtype: torch.dtype) -> None:
    numbers, plain = LOSSES[name]
    where = [*LAYOUTS.values(), *((s, torch.clone, torch.clone) for s in ((), (0, 3), (30_000,)))]
    for i, (shape, lay_values, lay_mask) in enumerate(where):
        mask = lay_mask(torch.rand(shape) > 0.3)
        raw = [lay_values((torch.randn(shape) * 2).to(dtype)) for _ in range(2)]
        leaves = [soiled(x, mask, GARBAGE[i % 4]).requires_grad_() for x in raw]
        wide = [x.double()[mask].requires_grad_() for x in raw]
        (total, count), expected = distance_sum(*leaves, mask, numbers), plain(*wide, reduction="sum")
        assert count.tolist() == mask.sum().tolist()
        assert total.dtype is (dtype if dtype.itemsize > 2 else torch.float32)
        rounding, slack = ROUNDING[total.dtype], 4 * ROUNDING[dtype]
        torch.testing.assert_close(total.double(), expected, rtol=rounding, atol=10 * rounding)
        found = torch.autograd.grad(total * 3, leaves)
        for part, other in zip(found, torch.autograd.grad(expected * 3, wide), strict=True):
            torch.testing.assert_close(part[mask].double(), other, rtol=slack, atol=slack)
            assert not part[~mask].any()


@pytest.mark.parametrize("name", list(LOSSES))
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e38, 0.0])
@pytest.mark.own_dtype("bfloat16", "float16")
def test_what_is_not_finite_and_specified_surfaces_as_in_torch(name: str, value: float) -> None:
    input, target = torch.full((9,), 0.5), torch.zeros(9)
    input[4] = value
    leaves = [input.clone().requires_grad_() for _ in range(2)]
    mask, (numbers, plain) = torch.ones(9, dtype=torch.bool), LOSSES[name]
    found, _ = distance_sum(leaves[0], target, mask, numbers)
    expected = plain(leaves[1], target, reduction="sum")
    torch.testing.assert_close(found, expected, equal_nan=True)
    pair = [torch.autograd.grad(y, x) for y, x in zip((found, expected), leaves, strict=True)]
    torch.testing.assert_close(*pair, equal_nan=True)


@pytest.mark.parametrize("name", list(LOSSES))
def test_derivatives_of_second_order_in_batches_and_of_infinite_gradients(name: str) -> None:
    mask, inputs = torch.rand(4, 3) > 0.4, [torch.randn(4, 3).double().requires_grad_() for _ in range(2)]

    def loss(*inputs: Tensor) -> Tensor:
        return distance_sum(*(torch.where(mask, x, math.nan) for x in inputs), mask, LOSSES[name][0])[0]

    assert torch.autograd.gradcheck(loss, inputs, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(loss, inputs)
    total, _ = distance_sum(*inputs, mask, LOSSES[name][0])
    for grad in torch.autograd.grad(total, inputs, torch.tensor(math.inf).double()):
        assert not grad[~mask].any()
