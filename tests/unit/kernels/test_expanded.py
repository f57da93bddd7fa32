"""Reductions over what ``expand`` repeats: as of the copy, at the cost of what lies in memory."""

from __future__ import annotations

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
