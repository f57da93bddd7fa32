"""Samples with garbage under the mask, for tests that compare with what is left when it is deleted; and refusals."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import maskgrad as mg

__all__ = ["assert_operators_refused", "assert_refused", "garbage"]


def garbage(
    *shape: int, density: float = 0.6, requires_grad: bool = False
) -> tuple[mg.MaskedTensor, Tensor, Tensor]:
    """A MaskedTensor with NaN, infinities and 1e38 under its mask; its values with zeros there; and the mask."""
    values = torch.randn(shape)
    mask = torch.rand(shape) < density
    mask.view(-1)[:1] = True
    bad = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e38])[torch.randint(4, shape)]
    data = torch.where(mask, values, bad)
    return mg.masked(data.requires_grad_(requires_grad), mask), torch.where(mask, values, 0.0), mask


def assert_refused(words: str, *calls: Callable[[], Any]) -> None:
    """Each call raises an error with these words, a regular expression."""
    for call in calls:
        with pytest.raises((TypeError, mg.UnsupportedOperationError), match=words):
            call()


ARITHMETIC = (operator.add, operator.eq)


def assert_operators_refused(words: str, x: Any, *others: Any, functions: Any = ARITHMETIC) -> None:
    """In both orders."""
    for other, function in itertools.product(others, functions):
        assert_refused(words, functools.partial(function, x, other), functools.partial(function, other, x))
