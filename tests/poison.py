"""MaskedTensors with garbage under the mask, and assertions that look at the pattern before the numbers."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

import maskgrad as mg
from tests.defaults import chosen_dtype

__all__ = ["assert_entries", "assert_nothing", "assert_number", "gradient", "leaf", "on", "poisoned"]

nan, inf = float("nan"), float("inf")
#: With --dtype, of numbers that the tests give with more digits.
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}


def on(*bits: Any) -> Tensor:
    """A mask: 1 = specified."""
    return torch.tensor(bits).bool()


def leaf(*values: Any, dtype: torch.dtype | None = None) -> Tensor:
    """Plain data that wants a gradient."""
    return torch.tensor(values, dtype=dtype or chosen_dtype(torch.float64), requires_grad=True)


def poisoned(entries: Any, dtype: torch.dtype | None = None, requires_grad: bool = False) -> mg.MaskedTensor:
    """The entries of nested lists, None = unspecified: NaN, infinities and huge numbers are put there in turn."""
    values, mask = _values(entries, dtype or chosen_dtype(torch.float64)), torch.tensor(_known(entries))
    return mg.masked(values.requires_grad_(requires_grad), mask)


def _values(entries: Any, dtype: torch.dtype) -> Tensor:
    if dtype.is_floating_point or dtype.is_complex:
        garbage = [nan, inf, -inf, min(1e38, torch.finfo(dtype).max)]
    else:
        garbage = [True if dtype == torch.bool else torch.iinfo(dtype).max]
    return torch.tensor(_replace(entries, itertools.cycle(garbage)), dtype=dtype)


def _replace(entries: Any, garbage: Any) -> Any:
    if isinstance(entries, list):
        return [_replace(entry, garbage) for entry in entries]
    return next(garbage) if entries is None else entries


def _known(entries: Any) -> Any:
    return [_known(entry) for entry in entries] if isinstance(entries, list) else entries is not None


def gradient(result: mg.MaskedTensor | Tensor, of: mg.MaskedTensor | Tensor) -> Tensor:
    """What reaches the plain data of ``of`` from the sum of the specified results; kept graphs allow a second call."""
    plain = result.filled(0) if isinstance(result, mg.MaskedTensor) else result
    data = of._values if isinstance(of, mg.MaskedTensor) else of
    (grad,) = torch.autograd.grad(plain.sum(), data, retain_graph=True)
    assert type(grad) is Tensor
    return grad


def assert_entries(result: Any, expected: Any, dtype: torch.dtype | None = None, tol: float = 1e-6) -> None:
    """The pattern first, then the specified numbers: nested lists, None = unspecified. Gradients may be plain."""
    if isinstance(result, mg.MaskedTensor):
        mask, values = result.mask, result.filled(0)
    else:
        mask, values = torch.ones(result.shape, dtype=torch.bool), result
    assert mask.dtype == torch.bool
    assert mask.shape == values.shape == result.shape
    assert mask.tolist() == _known(expected)
    if dtype is not None:
        assert result.dtype == dtype
    if values.dtype == chosen_dtype(None):
        tol = max(tol, ROUNDING.get(values.dtype, 0.0))
    wanted = torch.tensor(_replace(expected, itertools.repeat(0)), dtype=values.dtype)
    torch.testing.assert_close(
        values.detach(), wanted.reshape(values.shape), rtol=tol, atol=tol, equal_nan=True
    )


def assert_number(
    result: Any, expected: float | complex, dtype: torch.dtype | None = None, tol: float = 1e-6
) -> None:
    """A reduction over everything, or a loss: a plain tensor without dimensions, NaN where NaN is expected."""
    assert type(result) is Tensor
    assert_entries(result, expected, dtype, tol)


def assert_nothing(result: Any, number: float, *of: mg.MaskedTensor | Tensor) -> None:
    """Nothing was left: the number that PyTorch has for it, and a gradient of exactly zero (NaN would count)."""
    assert_number(result, number, tol=0)
    for operand in of:
        assert not gradient(result, operand).to_dense().count_nonzero()
