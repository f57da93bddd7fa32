"""Reductions: torch's result on what is left; of nothing, unspecified or a number, with gradient zero."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import maskgrad as mg
from tests.poison import assert_entries, assert_nothing, inf, leaf, nan, on, poisoned

X = [[1.0, None, 4.0], [None, None, None], [2.0, 3.0, None]]


def test_all_dimensions_by_name_stay_masked() -> None:
    """The type of a result depends on how a function is called, never on the rank of what it is called with."""
    assert_entries(poisoned([None, None]).sum(0), None)
    assert isinstance(poisoned([1.0, None]).mean(0), mg.MaskedTensor)
    assert isinstance(poisoned(X).mean((0, 1)), mg.MaskedTensor)
    assert isinstance(poisoned(X).mean((0, 1), keepdim=True), mg.MaskedTensor)
    assert isinstance(poisoned(X).amax(), mg.MaskedTensor)
    with pytest.raises(RuntimeError, match=r"not contain a dimension twice, got \(0, -2\) for a tensor of 2"):
        poisoned(X).sum((0, -2))
    with pytest.raises(IndexError, match=r"expected to be in range of \[-2, 1\], but got 2"):
        poisoned(X).sum(2)


@pytest.mark.parametrize("dim", [(), [], None])
def test_no_dimension_named_is_all_of_them(dim: Any) -> None:
    x = poisoned([[None, None]], requires_grad=True)
    for name, number in (("sum", 0.0), ("mean", nan), ("var", nan), ("std", nan)):
        assert_nothing(getattr(x, name)(dim), number, x)
        assert_nothing(getattr(mg.functional, name)(x._values, dim, mask=x.mask), number, x)
    assert_nothing(torch.linalg.vector_norm(x, 2, dim), 0.0, x)
    assert_nothing(torch.norm(x, 2, dim), 0.0, x)
    scalar = poisoned(None, requires_grad=True)
    assert_nothing(scalar.mean(dim), nan, scalar)
    assert_entries(scalar.mean(0), None)


def test_the_mean_of_a_mask_that_repeats() -> None:
    assert_entries(mg.masked(torch.tensor([[1.0], [nan]]).expand(2, 3), on([1], [0])).mean((0, 1)), 1.0)
    assert_entries(mg.masked(torch.ones(0, 3), on([1])[:0]).mean((0, 1)), None)
    with pytest.raises(RuntimeError, match="pass dtype="):
        mg.masked(torch.ones(2, 3).long()).mean()
    with mg.use_kernels("invariant"):
        assert mg.masked(torch.tensor([1e8, 1.0, -1e8, 1.0], dtype=torch.float32)).mean() == 0.5


def test_variance_far_from_zero_is_stable() -> None:
    assert_entries(poisoned([1e6 + 1, None, 1e6 + 3], torch.float32).var(), 2.0)


def test_equality_compares_patterns_and_specified_values() -> None:
    a = poisoned([1.0, None, 3.0])
    for same in (torch.equal, torch.allclose):
        assert same(a, mg.masked(leaf(1.0, inf, 3.0), on(1, 0, 1))) is True
        assert same(a, poisoned([1.0, None, 4.0])) is False
        assert same(a, poisoned([1.0, 2.0, 3.0])) is False
        assert same(a, leaf(1.0, 2.0, 3.0)) is False
    broken = poisoned([1.0, nan])
    assert not torch.equal(broken, broken.clone())
    assert broken.allclose(broken, equal_nan=True)
    row, column = poisoned([1.0, 1.0]), poisoned([[1.0], [1.0]])
    for one, other in ((row, column.expand(2, 2)), (column.expand(2, 2), row)):
        assert not torch.equal(one, other)
        assert torch.allclose(one, other)
