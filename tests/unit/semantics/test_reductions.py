"""Reductions: torch's result on what is left; of nothing, unspecified or a number, with gradient zero."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import maskgrad as mg
from tests.poison import assert_entries, assert_nothing, assert_number, gradient, inf, leaf, nan, on, poisoned

X = [[1.0, None, 4.0], [None, None, None], [2.0, 3.0, None]]
ROWS = [torch.tensor([1.0, 4.0]).double(), None, torch.tensor([2.0, 3.0]).double()]
NAMES = ["sum", "mean", "prod", "var", "std", "any", "all", "nansum", "nanmean", "count_nonzero"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dim", [1, -1])
def test_each_row_is_reduced_as_if_alone(name: str, dim: int) -> None:
    expected = [None if row is None else getattr(torch, name)(row, 0).item() for row in ROWS]
    for result in (getattr(poisoned(X), name)(dim), getattr(torch, name)(poisoned(X), dim=dim)):
        assert_entries(result, expected, dtype=getattr(torch, name)(ROWS[0], 0).dtype)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0:UserWarning")
def test_everything_is_reduced_to_a_number(name: str) -> None:
    function = getattr(torch, name)
    expected = function(torch.tensor([1.0, 4.0, 2.0, 3.0]).double()).item()
    assert_number(getattr(poisoned(X), name)(), expected)
    nothing = function(torch.zeros(0).double())
    x = poisoned([[None, None], [None, None]], requires_grad=True)
    for found in (getattr(x, name)(), function(x), *([] if name == "prod" else [function(x, dim=None)])):
        assert_number(found, nothing.item(), nothing.dtype)
        if found.requires_grad:
            assert_nothing(found, nothing.item(), x)
    assert_entries(function(x, dim=1), [None, None])


def test_all_dimensions_by_name_stay_masked() -> None:
    """The type of a result depends on how a function is called, never on the rank of what it is called with."""
    assert_entries(poisoned([None, None]).sum(0), None)
    assert isinstance(poisoned([1.0, None]).mean(0), mg.MaskedTensor)
    assert isinstance(poisoned(X).mean((0, 1)), mg.MaskedTensor)
    assert isinstance(poisoned(X).mean((0, 1), keepdim=True), mg.MaskedTensor)
    assert isinstance(poisoned(X).amax(), mg.MaskedTensor)


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


@pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0:UserWarning")
@pytest.mark.parametrize("name", ["sum", "mean", "prod", "var", "norm"])
def test_numbers_of_complex_tensors(name: str) -> None:
    nothing = getattr(torch.zeros(0, dtype=torch.complex64), name)()
    found = getattr(poisoned([None, None], torch.complex64), name)()
    assert found.dtype == nothing.dtype
    assert str(found) == str(nothing)  # nan+nanj


@pytest.mark.parametrize("reduce", [torch.var_mean, torch.std_mean])
def test_two_numbers(reduce: Any) -> None:
    x = poisoned([None, None], requires_grad=True)
    for found in (*reduce(x), *reduce(x, dim=None, correction=0), *reduce(x, False)):
        assert_nothing(found, nan, x)
    for found, expected in zip(reduce(poisoned(X)), reduce(torch.tensor([1.0, 4.0, 2.0, 3.0])), strict=True):
        assert_number(found, expected.item())


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "var", "std", "nansum", "nanmean"])
def test_gradients_are_those_of_each_row_alone(name: str) -> None:
    x = poisoned(X, requires_grad=True)
    grad = gradient(getattr(x, name)(1), x)
    for got, row, mask in zip(grad, ROWS, x.mask, strict=True):
        assert got[~mask].tolist() == [0.0] * int((~mask).sum())
        if row is not None:
            alone = row.clone().requires_grad_()
            torch.testing.assert_close(got[mask], gradient(getattr(alone, name)(0), alone))


def test_dimensions() -> None:
    x = poisoned(X)
    assert_entries(x.sum(0), [3.0, 3.0, 4.0])
    assert_entries(x.sum((0, 1)), 10.0)
    assert_entries(x.sum((0, -1), keepdim=True), [[10.0]])
    assert_entries(x.sum(()), 10.0)
    assert_entries(x.mean(1, keepdim=True), [[2.5], [None], [2.5]])
    with pytest.raises(IndexError, match=r"range of \[-2, 1\], but got 2"):
        x.sum(2)
    with pytest.raises(RuntimeError, match="twice"):
        x.sum((0, -2))


def test_scalars_and_empty_tensors() -> None:
    assert_entries(poisoned(2.0).sum(), 2.0)
    assert_entries(poisoned(None).mean(0), None)
    assert_entries(mg.masked(torch.zeros(2, 0)).sum(1), [None, None])
    assert mg.masked(torch.zeros(0, 2)).sum(1).shape == (0,)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_added_in_single_precision(dtype: torch.dtype) -> None:
    x = mg.masked(torch.ones(4096, dtype=dtype), torch.arange(4096) % 2 == 0)
    assert_entries(x.sum(), 2048.0, dtype=dtype)
    big = mg.masked(torch.full((4, 3), 60000.0, dtype=torch.float16), on([1, 1, 0]))
    assert_entries(big.mean(1), [60000.0] * 4, dtype=torch.float16)


def test_dtypes() -> None:
    assert_entries(poisoned([1, None, 2], torch.int32).sum(), 3, dtype=torch.int64)
    assert_entries(poisoned([True, None, True], torch.bool).sum(), 2, dtype=torch.int64)
    assert_entries(poisoned([1, None, 2], torch.int32).mean(dtype=torch.float64), 1.5, dtype=torch.float64)
    assert_entries(poisoned([1.5, None], torch.float16).sum(dtype=torch.float64), 1.5, dtype=torch.float64)
    assert_entries(poisoned([2, None], torch.int64).prod(dtype=torch.float32), 2.0, dtype=torch.float32)
    for name in ("mean", "var"):
        with pytest.raises(RuntimeError, match="floating point"):
            getattr(poisoned([1, None], torch.int64), name)()


def test_complex_numbers() -> None:
    x = poisoned([1 + 1j, None, 3 - 1j], torch.complex64)
    assert_entries(x.mean(), 2.0)
    assert_entries(x.var(), 4.0, dtype=torch.float32)


def test_variance_of_one_entry_is_what_torch_says() -> None:
    assert_entries(poisoned([1.0, None]).var(), nan)
    assert_entries(poisoned([1.0, None]).var(unbiased=False), 0.0)
    assert_entries(poisoned([1.0, None, 3.0]).var(correction=0), 1.0)
    assert_entries(poisoned([5.0, None, 5.0], requires_grad=True).std(), 0.0)
    x = poisoned([5.0, None, 5.0], requires_grad=True)
    assert gradient(x.std(), x).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("length", [4, 60])
@pytest.mark.parametrize("name", ["var", "std"])
def test_no_estimate_from_one_infinity_has_no_second_derivative(name: str, length: int) -> None:
    values = torch.randn(3, length, dtype=torch.float64)
    values[1, 2] = torch.inf
    mask = torch.ones(3, length, dtype=torch.bool)
    mask[1] = torch.arange(length) == 2
    leaf = values.requires_grad_()
    (first,) = torch.autograd.grad(
        getattr(mg.masked(leaf, mask), name)(1).filled(0.0).sum(), leaf, create_graph=True
    )
    (second,) = torch.autograd.grad((first * first).sum(), leaf)
    assert torch.equal(first[1], torch.zeros_like(first[1]))
    assert torch.equal(second[1], torch.zeros_like(second[1]))
    assert second.isfinite().all()


def test_variance_far_from_zero_is_stable() -> None:
    assert_entries(poisoned([1e6 + 1, None, 1e6 + 3], torch.float32).var(), 2.0)


@pytest.mark.parametrize("name", ["var_mean", "std_mean"])
def test_pairs(name: str) -> None:
    spread, average = getattr(torch, name)(poisoned(X), 1)
    assert_entries(average, [2.5, None, 2.5])
    assert_entries(spread, [4.5, None, 0.5] if name == "var_mean" else [4.5**0.5, None, 0.5**0.5])


def test_a_real_nan_surfaces_unless_asked_otherwise() -> None:
    x = poisoned([1.0, nan, None])
    assert_entries(x.sum(), nan)
    assert_entries(x.nansum(), 1.0)
    assert_entries(x.nanmean(), 1.0)
    assert_entries(poisoned([nan, None]).nanmean(), nan)
    assert_entries(poisoned([nan, None]).nansum(), 0.0)


def test_product_with_zeros_has_torchs_gradient() -> None:
    x = poisoned([0.0, None, 3.0], requires_grad=True)
    assert gradient(x.prod(), x).tolist() == [3.0, 0.0, 0.0]


@pytest.mark.parametrize("mask", [(1, 1, 0), (0, 0, 0)])
def test_second_derivatives(mask: tuple[int, ...]) -> None:
    data = leaf(1.0, 3.0, inf)

    def once(v: Any) -> Any:
        return mg.masked(v, on(*mask)).var()

    (first,) = torch.autograd.grad(once(data), data, create_graph=True)
    second = gradient(first * torch.tensor([1.0, 0.0, 0.0]).double(), data)
    assert second.tolist() == ([1.0, -1.0, 0.0] if any(mask) else [0.0] * 3)


@pytest.mark.parametrize("shape", [(3, 4), (40, 60)])
def test_any_and_all_of_booleans_by_deletion(shape: tuple[int, int]) -> None:
    for garbage in (True, False):
        for chance in (0.1, 0.9):
            mask, values = torch.rand(shape) < 0.3, torch.rand(shape) < chance
            mask[0] = False
            values[~mask] = garbage
            x = mg.masked(values, mask)
            for dim in (0, 1):
                slices = [
                    (v[m], bool(m.any()))
                    for v, m in zip(values.movedim(dim, 1), mask.movedim(dim, 1), strict=True)
                ]
                present = torch.tensor([known for _, known in slices])
                for name in ("any", "all"):
                    found = getattr(x, name)(dim)
                    expected = torch.tensor([bool(getattr(v, name)()) for v, _ in slices])
                    assert torch.equal(found.mask, present)
                    assert torch.equal(found.filled(False), expected & present)
                    kept = getattr(x, name)(dim, keepdim=True)
                    assert torch.equal(kept.mask.squeeze(dim), present)
