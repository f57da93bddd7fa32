"""Scans, differences and integrals: over the specified entries up to a position; gaps stay gaps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import maskgrad as mg
from maskgrad.semantics.dimensions import previous_specified, ranks, specified_first, specified_last
from tests.laws.any_type.comparison import parts_of
from tests.laws.evaluation import anomalies_raise
from tests.laws.slices import per_slice
from tests.poison import assert_entries, gradient, inf, leaf, nan, on, poisoned
from tests.unit.semantics.deletion import FLOATS, NUMBERS, assert_parts, data

SCANS = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")


def scanned(name: str, x: Tensor, mask: Tensor, dim: int) -> list[tuple[Tensor, Tensor]]:
    """torch's scan of what is left, put back where it stood."""

    def rule(vector: Tensor, present: Tensor) -> list[tuple[Tensor, Tensor]]:
        where = present.nonzero().squeeze(1)
        parts = parts_of(getattr(torch, name)(vector[present], 0))
        parts = [where[part] if i else part for i, part in enumerate(parts)]
        return [
            (torch.zeros(len(vector), dtype=part.dtype).index_put((where,), part), present) for part in parts
        ]

    return per_slice(rule, x, mask, dim)


@pytest.mark.parametrize("dtype", [*NUMBERS, torch.bool], ids=str)
@pytest.mark.parametrize("name", SCANS)
def test_scans_are_those_of_what_is_left(name: str, dtype: torch.dtype) -> None:
    if name == "logcumsumexp" and not dtype.is_floating_point:
        with pytest.raises(NotImplementedError):
            torch.logcumsumexp(next(data(dtype)).masked, 0)
        return
    for case in data(dtype):
        for dim in (0, 1, -1):
            result = getattr(torch, name)(case.masked, dim)
            rounding = torch.finfo(dtype).eps if name == "logcumsumexp" else 0.0
            expected = scanned(name, case.x, case.mask, dim)
            assert_parts(result, expected, lambda: f"{name}, {case}", 4 * rounding)  # noqa: B023


@pytest.mark.parametrize("name", SCANS)
def test_gradients_are_those_of_what_is_left(name: str) -> None:
    for case in data(torch.float64, kinds="ordinary"):
        clean = case.x.clone().requires_grad_()
        expected = scanned(name, clean, case.mask, 1)[0][0]
        result = parts_of(getattr(torch, name)(case.masked, 1))[0]
        weights = torch.where(case.mask, torch.randn(case.mask.shape, dtype=torch.float64), 0)
        with anomalies_raise(True):
            (found,) = torch.autograd.grad((result * weights).filled(0.0).sum(), case.masked._values)
        (right,) = torch.autograd.grad((expected * weights).sum(), clean)
        torch.testing.assert_close(found, right)
        assert not found[~case.mask].any()


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "logcumsumexp"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_second_derivatives(name: str, dtype: torch.dtype) -> None:
    mask = on([1, 0, 1, 1, 0], [0, 1, 0, 1, 1], [0, 0, 0, 0, 0])
    x = torch.where(mask, torch.randn(3, 5, dtype=dtype), nan).requires_grad_()
    free = x.detach()[mask].requires_grad_()

    def function(entries: Tensor) -> Tensor:
        return getattr(mg.masked(x.detach().masked_scatter(mask, entries), mask), name)(1).compressed()

    assert gradcheck(function, (free,))
    assert gradgradcheck(function, (free,))


def test_running_products_that_overflow() -> None:
    # a 1 in the gap would meet inf * 0 in the backward pass
    x = poisoned([1e200, 1e200, None, 2.0], requires_grad=True)
    clean = leaf(1e200, 1e200, 2.0)
    (right,) = torch.autograd.grad(clean.cumprod(0).sum(), clean)
    assert gradient(x.cumprod(0), x)[on(1, 1, 0, 1)].tolist() == right.tolist()


def test_logarithms_of_sums_between_infinities() -> None:
    x = poisoned([None, 0.0, None, inf, 1.0], requires_grad=True)
    assert_entries(x.logcumsumexp(0), [None, 0.0, None, inf, inf])
    assert gradient(x.logcumsumexp(0), x).tolist() == [
        0.0,
        1.0,
        0.0,
        2.0,
        0.0,
    ]  # torch has NaN for the infinite one
    far = poisoned([-1000.0, None, 900.0], requires_grad=True)
    assert gradient(far.logcumsumexp(0)[2], far).tolist() == [0.0, 0.0, 1.0]


def test_arguments_and_spellings_of_scans() -> None:
    x = poisoned([[1, None], [2, 3]], torch.int32)
    assert_entries(x.cumsum(dim=0), [[1, None], [3, 3]], dtype=torch.int64)
    assert_entries(
        torch.cumsum(x, axis=1, dtype=torch.float64), [[1.0, None], [2.0, 5.0]], dtype=torch.float64
    )
    assert_entries(
        torch.cumprod(input=x, dim=1, dtype=torch.float32), [[1.0, None], [2.0, 6.0]], dtype=torch.float32
    )
    y = poisoned([1.0, None, 2.0])
    assert y.cumsum_(0) is y
    assert_entries(y, [1.0, None, 3.0])
    values, indices = torch.cummin(poisoned([None, 3.0, None, 1.0]), 0)
    assert_entries(values, [None, 3.0, None, 1.0])
    assert_entries(indices, [None, 1, None, 3], dtype=torch.int64)
    assert type(y.cummax(0)) is torch.return_types.cummax
    for name in SCANS:
        for empty in (poisoned(2.0), mg.masked(torch.zeros(0, 3), torch.ones(0, 3, dtype=torch.bool))):
            assert parts_of(getattr(empty, name)(0))[0].shape == empty.shape
        with pytest.raises(IndexError):
            getattr(y, name)(1)


def test_differences_do_not_jump_over_gaps() -> None:
    x = poisoned([1.0, 2.0, None, 4.0, 8.0, 9.0], requires_grad=True)
    assert_entries(x.diff(), [1.0, None, None, 4.0, 1.0])
    assert_entries(torch.diff(x, 2), [None, None, None, -3.0])
    assert_entries(torch.diff(x, n=9), [])
    assert_entries(torch.diff(x, n=0), [1.0, 2.0, None, 4.0, 8.0, 9.0])
    assert gradient(x.diff(), x).tolist() == [-1.0, 1.0, 0.0, -1.0, 0.0, 1.0]
    ends = torch.diff(x, prepend=torch.zeros(1).double(), append=poisoned([None]))
    assert_entries(ends, [1.0, 1.0, None, None, 4.0, 1.0, None])
    assert_entries(torch.diff(torch.zeros(2), append=poisoned([None], torch.float32)), [0.0, None])
    assert_entries(poisoned([True, False, None], torch.bool).diff(), [True, None])


def test_derivatives_need_what_they_read() -> None:
    x = poisoned([0.0, 1.0, None, 9.0, 16.0, 25.0], requires_grad=True)
    # the result at 2 reads 1 and 3
    assert_entries(torch.gradient(x)[0], [1.0, None, 4.0, None, 8.0, 9.0])
    assert_entries(torch.gradient(x, spacing=2.0)[0], [0.5, None, 2.0, None, 4.0, 4.5])
    assert_entries(torch.gradient(x, edge_order=2)[0], [None, None, 4.0, None, 8.0, 10.0])
    assert gradient(torch.gradient(x)[0], x).tolist() == [-1.0, 0.5, 0.0, 0.0, -1.0, 1.5]
    # unequal steps weigh the entry in the middle, too
    places = torch.arange(6.0, dtype=torch.float64, requires_grad=True)
    assert_entries(torch.gradient(x, spacing=(places,))[0], [1.0, None, None, None, 8.0, 9.0])
    missing = mg.masked(torch.where(on(1, 1, 1, 1, 0, 1), places, nan), on(1, 1, 1, 1, 0, 1))
    result = torch.gradient(torch.arange(6.0).double() ** 2, spacing=(missing,))[0]
    assert_entries(result, [1.0, 2.0, 4.0, None, None, None])
    assert torch.autograd.grad(result.filled(0.0).sum(), places)[0].isfinite().all()
    two = torch.gradient(poisoned([[1.0, 2.0], [None, 5.0]]), dim=(0, 1))
    assert_entries(two[0], [[None, 3.0], [None, 3.0]])
    assert_entries(two[1], [[1.0, 1.0], [None, None]])


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64], ids=str)
def test_integrals_join_the_points_that_are_left(dtype: torch.dtype) -> None:
    for case in data(dtype, kinds="ordinary ties"):
        places = torch.tensor([0, 1, 2, 4, 5, 8]).to(dtype)
        for row, bits, single in zip(case.x, case.mask, case.masked, strict=True):
            left, points = row[bits], places[bits]
            for options in ({}, {"dx": 3}, {"x": places}):
                alike = {"x": points} if "x" in options else options
                check_integral(torch.trapezoid(left, **alike), bits.any(), torch.trapezoid(single, **options))
                running = torch.cumulative_trapezoid(left, **alike)
                found = torch.cumulative_trapezoid(single, **options)
                ends = bits[1:] & (bits.cumsum(0)[1:] > 1)
                assert found.mask.tolist() == ends.tolist()
                torch.testing.assert_close(found.compressed(), running, rtol=1e-2, atol=1e-2)


def check_integral(expected: Tensor, any_left: Tensor, found: mg.MaskedTensor) -> None:
    assert bool(found.mask) == bool(any_left)
    if any_left:
        rough = expected.dtype in (torch.bfloat16, torch.float16)
        torch.testing.assert_close(
            found.filled(0).to(expected.dtype),
            expected,
            rtol=1e-2 if rough else 1e-5,
            atol=1e-2 if rough else 1e-5,
        )


def test_integrals_with_missing_coordinates() -> None:
    y = poisoned([[1.0, None, 3.0, 5.0], [None] * 4, [None, 2.0, None, None]], requires_grad=True)
    x = poisoned([0.0, 1.0, None, 4.0], requires_grad=True)
    assert_entries(torch.trapezoid(y, x), [12.0, None, 0.0])
    assert_entries(torch.trapz(y, x, dim=-1), [12.0, None, 0.0])
    assert_entries(torch.cumulative_trapezoid(y, x=x), [[None, None, 12.0], [None] * 3, [None] * 3])
    total = torch.trapezoid(y, x)
    assert gradient(total, y).tolist() == [[2.0, 0.0, 0.0, 2.0], [0.0] * 4, [0.0] * 4]
    assert gradient(total, x).tolist() == [-3.0, 0.0, 0.0, 3.0]
    assert_entries(torch.trapezoid(torch.ones(4).double(), x), 4.0)
    assert_entries(torch.trapezoid(y.T, dim=0), [6.0, None, 0.0])


def test_integrals_refuse_what_torch_refuses() -> None:
    y = poisoned([1.0, None, 3.0])
    for call in (
        lambda: torch.trapezoid(y, torch.ones(2)),
        lambda: torch.trapezoid(poisoned([True, None], torch.bool)),
        lambda: torch.trapezoid(y, on(1, 0, 1)),
        lambda: torch.trapezoid(y, torch.ones(2, 3), dim=0),
    ):
        with pytest.raises(RuntimeError):
            call()
    with pytest.raises(IndexError):
        torch.trapezoid(poisoned(1.0))
    with pytest.raises(IndexError):
        torch.cumulative_trapezoid(y, dim=2)


def test_compaction() -> None:
    mask = on([1, 0, 1], [0, 0, 0])
    assert specified_first(mask, 1).tolist() == [[0, 2, 1], [0, 1, 2]]
    assert ranks(mask, 1).tolist() == [[0, 2, 1], [0, 1, 2]]
    order, rank = specified_last(mask, 1)
    assert order.tolist() == [[1, 0, 2], [0, 1, 2]]
    assert rank.tolist() == [[1, 0, 2], [0, 1, 2]]
    assert previous_specified(mask, 1).tolist() == [[-1, 0, 0], [-1, -1, -1]]
    assert specified_first(torch.tensor(True), 0).tolist() == 0


# Dynamo itself instantiates the class
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("name", [*SCANS, "diff", "trapezoid", "cumulative_trapezoid"])
def test_compiled_in_one_graph_and_under_vmap(name: str) -> None:
    along: list[Any] = [1] if name in SCANS else []

    def function(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        result = parts_of(getattr(torch, name)(mg.masked(values, mask), *along))[0]
        return result.filled(0.0), result.mask

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    for mask in (on([1, 0, 1], [0, 1, 1]), on([0, 0, 1], [1, 0, 1])):
        values = torch.where(mask, torch.rand(2, 3), nan).requires_grad_()
        (one, pattern), (other, same) = function(values, mask), compiled(values, mask)
        torch.testing.assert_close(one, other)
        assert torch.equal(pattern, same)
        grads = [torch.autograd.grad(part.sum(), values)[0] for part in (one, other)]
        torch.testing.assert_close(*grads)
        each = torch.vmap(lambda v, m: function(v[None], m[None]))(values, mask)
        torch.testing.assert_close(each[0].squeeze(1), one)


@pytest.mark.parametrize(("shape", "dim"), [((7,), 0), ((3, 5), 1), ((3, 5), 0)])
def test_forward_mode_of_logcumsumexp(shape: tuple[int, ...], dim: int) -> None:
    x, mask = torch.randn(shape, dtype=torch.float64).requires_grad_(), torch.rand(shape) > 0.4

    def function(values: Tensor) -> Tensor:
        return torch.logcumsumexp(mg.masked(torch.where(mask, values, nan), mask), dim).filled(0.0)

    assert gradcheck(function, (x,), check_forward_ad=True)
    assert gradgradcheck(function, (x,), check_fwd_over_rev=True)
