"""Reductions over what ``expand`` repeats: as of the copy, at the cost of what lies in memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import maskgrad as mg
from tests.poison import nan

OPERATIONS: dict[str, Callable[..., Any]] = {
    name: getattr(mg.MaskedTensor, name) for name in ("sum", "mean", "amax", "amin")
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_copy_is_made(operation: str) -> None:
    many = 10**12  # entries: no machine here has the memory
    value = torch.tensor([[3.0], [nan], [5.0]])
    mask = torch.tensor([[True], [False], [True]])
    x = mg.masked(value.expand(3, many), mask.expand(3, many))
    result = OPERATIONS[operation](x, 1)
    assert result.mask.tolist() == [True, False, True]
    expected = torch.tensor([3e12, 0, 5e12] if operation == "sum" else [3.0, 0, 5])
    torch.testing.assert_close(result.filled(0), expected)
    whole = OPERATIONS[operation](x, (0, 1))
    whole = whole.filled(nan) if isinstance(whole, mg.MaskedTensor) else whole
    torch.testing.assert_close(
        whole, torch.tensor({"sum": 8e12, "mean": 4.0, "amax": 5.0, "amin": 3.0}[operation])
    )
    assert x.num_specified() == 2 * many


@pytest.mark.parametrize(
    ("operation", "dtype"),
    [
        (operation, dtype)
        for operation in OPERATIONS
        for dtype in (torch.float64, torch.float16, torch.int32)
        if not (operation == "mean" and dtype == torch.int32)  # PyTorch has none
    ],
)
def test_results_are_those_of_the_copy(operation: str, dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    for shape in ((1, 5, 1), (4, 1, 3), (1, 1, 1), (1, 300, 1)):
        base = torch.randint(-4, 4, shape).to(dtype)
        mask = torch.rand(shape) < 0.6
        if dtype.is_floating_point:
            base = torch.where(mask, base, nan)
        wide = (4, 300 if shape[1] == 300 else 5, 3)
        for dims in itertools.chain.from_iterable(itertools.combinations(range(3), k) for k in (1, 2, 3)):
            for own_mask in (mask.expand(wide), mask.expand(wide).contiguous()):
                found = OPERATIONS[operation](mg.masked(base.expand(wide), own_mask), dims)
                copy = mg.masked(base.expand(wide).contiguous(), mask.expand(wide).contiguous())
                expected = OPERATIONS[operation](copy, dims)
                assert type(found) is type(expected)
                if isinstance(found, mg.MaskedTensor):
                    assert torch.equal(found.mask, expected.mask)
                    found, expected = found.filled(0), expected.filled(0)
                torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_gradients_are_those_of_the_copy(operation: str) -> None:
    mask = torch.tensor([[True], [False], [True]])
    gradients = []
    for copied in (False, True):
        base = torch.tensor([[2.0], [nan], [2.0]], dtype=torch.float64, requires_grad=True)
        values = base.expand(3, 6).clone() if copied else base.expand(3, 6)
        y = OPERATIONS[operation](mg.masked(values, mask.expand(3, 6)), (0, 1))
        (y if isinstance(y, torch.Tensor) else y.filled(0)).backward()
        gradients.append(base.grad)
    torch.testing.assert_close(*gradients)
    total = 12.0 if operation == "sum" else 1.0
    torch.testing.assert_close(
        gradients[0], torch.tensor([[total / 2], [0], [total / 2]], dtype=torch.float64)
    )
