"""Accumulating writes: what meets at a place is combined over the specified contributions, by deletion."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from tests.poison import inf, nan, on

REDUCTIONS = {
    "sum": torch.sum,
    "prod": torch.prod,
    "mean": torch.mean,
    "amax": torch.amax,
    "amin": torch.amin,
}
GARBAGE = (nan, inf, -inf, 1e38)
INDEX = torch.tensor([0, 2, 2, 0, 2, 4, 2, 4])


def by_deletion(
    x: Tensor, x_mask: Tensor, source: Tensor, mask: Tensor, reduce: str, include_self: bool
) -> tuple[Tensor, Tensor]:
    """Place by place, torch's own reduction of what is left."""
    values, known = [], []
    for place in range(len(x)):
        arriving = source[mask & (place == INDEX)]
        old = x[place : place + 1][x_mask[place : place + 1]]
        left = torch.cat([old, arriving]) if include_self else arriving if len(arriving) else old
        values.append(REDUCTIONS[reduce](left) if len(left) else x.new_zeros(()))
        known.append(bool(len(left)))
    return torch.stack(values), torch.tensor(known)


def contents(kind: str, size: int) -> Tensor:
    generator = torch.Generator().manual_seed(size)
    x = torch.randn(size, generator=generator, dtype=torch.float64)
    if kind == "ties":
        return torch.randint(-1, 2, (size,), generator=generator).double()
    if kind == "infinities":
        return torch.where(torch.rand(size, generator=generator) < 0.7, torch.tensor(-inf), x)
    return x


@pytest.mark.parametrize("kind", ["ordinary", "ties", "infinities"])
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_scatter_reduce(reduce: str, include_self: bool, kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    for density, garbage in itertools.product((1.0, 0.5, 0.0), GARBAGE):
        x, source = contents(kind, 5), contents(kind, 8)
        x_mask, mask = (
            torch.rand(5, generator=generator) < density,
            torch.rand(8, generator=generator) < density,
        )
        clean = [t.clone().requires_grad_() for t in (x, source)]
        values, known = by_deletion(clean[0], x_mask, clean[1], mask, reduce, include_self)
        leaves = [torch.where(m, t, garbage).requires_grad_() for t, m in ((x, x_mask), (source, mask))]
        result = mg.masked(leaves[0], x_mask).scatter_reduce(
            0, INDEX, mg.masked(leaves[1], mask), reduce, include_self=include_self
        )
        assert torch.equal(result.mask, known)
        torch.testing.assert_close(result.filled(0.0), torch.where(known, values, 0), equal_nan=True)
        weights = torch.randn(5, generator=generator, dtype=torch.float64)
        found = torch.autograd.grad((result.filled(0.0) * weights).sum(), leaves)
        if kind == "infinities" and reduce == "prod":  # torch divides infinity by infinity
            assert all(not grad[~m].count_nonzero() for grad, m in zip(found, (x_mask, mask), strict=True))
            continue
        total = (torch.where(known, values, 0) * weights).sum() + sum(t[:0].sum() for t in clean)
        right = torch.autograd.grad(total, clean)
        torch.testing.assert_close(found, right)


def test_a_start_that_is_left_out_is_nobodys_equal() -> None:
    # torch counts it: 1 / 3 for each of the two
    source = torch.tensor([2.0, 2.0], requires_grad=True)
    start = mg.masked(torch.tensor([2.0]), on(1))
    start.scatter_reduce(0, torch.zeros(2).long(), source, "amax", include_self=False).sum().backward()
    assert source.grad.tolist() == [0.5, 0.5]


def test_garbage_is_nobodys_equal() -> None:
    for garbage in (-inf, 5.0):
        top = garbage if garbage == -inf else 5.0
        source = torch.tensor([top, garbage, top], requires_grad=True)
        x = mg.masked(torch.tensor([garbage]), on(0))
        result = x.scatter_reduce(0, torch.zeros(3).long(), mg.masked(source, on(1, 0, 1)), "amax")
        assert torch.autograd.grad(result.sum(), source)[0].tolist() == [0.5, 0.0, 0.5]


def test_a_real_nan_surfaces() -> None:
    source = mg.masked(torch.tensor([nan, 1.0, nan]), on(1, 1, 0))
    result = torch.zeros(2).scatter_reduce(0, torch.tensor([0, 0, 1]), source, "amax")
    assert result.isnan().tolist() == [True, False]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_added_in_float(dtype: torch.dtype) -> None:
    ones = mg.masked(torch.ones(4096, dtype=dtype), torch.ones(4096).bool())
    here = torch.zeros(4096, dtype=torch.int64)
    zero = torch.zeros(1, dtype=dtype)
    for result in (
        zero.scatter_add(0, here, ones),
        zero.index_add(0, here, ones),
        zero.put(here, ones, accumulate=True),
        zero.index_put((here,), ones, accumulate=True),
        zero.scatter_reduce(0, here, ones, "sum"),
    ):
        assert result.dtype == dtype
        assert result.tolist() == [4096.0]


def test_means_of_integers_are_rounded_down() -> None:
    source = mg.masked(torch.tensor([3, 100, -8]), on(1, 0, 1))
    result = torch.zeros(1).long().scatter_reduce(0, torch.zeros(3).long(), source, "mean")
    assert result.tolist() == [-2]  # (0 + 3 - 8) / 3


def test_unspecified_positions_write_nowhere() -> None:
    index = mg.masked(torch.tensor([1, 10**9, 0]), on(1, 0, 1))
    source = torch.tensor([1.0, 2.0, 4.0], requires_grad=True)
    x = torch.tensor([10.0, 20.0, 30.0])
    for result in (
        x.scatter_add(0, index, source),
        x.index_add(0, index, source),
        x.scatter(0, index, source) + x,
    ):
        assert result.tolist()[2] in (30.0, 60.0)
        (gradient,) = torch.autograd.grad(result.sum(), source)
        assert gradient.tolist() == [1.0, 0.0, 1.0]
    result = torch.tensor(5.0).scatter_add(0, mg.masked(torch.tensor(0), on(0)[0]), torch.tensor(1.0))
    assert result.tolist() == 5.0
    assert torch.zeros(0).index_add(0, mg.masked(torch.tensor([7]), on(0)), torch.ones(1)).tolist() == []


def test_index_add_scales_what_is_added() -> None:
    x = mg.masked(torch.tensor([1.0, nan]), on(1, 0))
    source = mg.masked(torch.tensor([1.0, inf, 3.0]), on(1, 0, 1))
    assert x.index_add(0, torch.tensor([0, 0, 1]), source, alpha=2).tolist() == [3.0, 6.0]
    truth = mg.masked(on(1, 0), on(1, 1))
    assert on(0, 0).index_add(0, torch.tensor([1, 0]), truth).tolist() == [False, True]


@pytest.mark.parametrize(
    ("index", "source"), [(torch.tensor([0]), torch.ones(2, 3)), (torch.tensor([[0]]), torch.ones(1, 3))]
)
def test_index_reduce_names_the_shapes_that_do_not_fit(index: Tensor, source: Tensor) -> None:
    x = mg.masked(torch.ones(3, 3), torch.ones(3, 3).bool())
    with pytest.raises(IndexError, match="one slice for each"):
        x.index_reduce(0, index, source, "prod")


def test_of_two_that_write_to_one_place_the_unspecified_gets_no_gradient() -> None:
    source = torch.tensor([1.0, nan], requires_grad=True)
    twice = torch.tensor([0, 0])
    result = torch.zeros(1).scatter(0, twice, mg.masked(source, on(1, 0)))
    assert torch.autograd.grad(result.filled(0.0).sum(), source, torch.tensor(1.0))[0][1] == 0


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_it_is_compiled_in_one_piece(reduce: str) -> None:
    def function(x: Tensor, mask: Tensor) -> Any:
        return torch.ones(5).scatter_reduce(0, INDEX, mg.masked(x, mask), reduce).filled(0.0)

    x, mask = torch.arange(8.0), on(1, 1, 0, 0, 1, 0, 1, 1)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, mask), function(x, mask))


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_second_derivatives(reduce: str) -> None:
    x_mask, mask = on(1, 0, 1, 1, 0), on(1, 1, 0, 1, 1, 1, 0, 1)

    def function(x: Tensor, source: Tensor) -> Tensor:
        result = mg.masked(x, x_mask).scatter_reduce(0, INDEX, mg.masked(source, mask), reduce)
        return result.filled(0.0)

    operands = [contents("ordinary", size).requires_grad_() for size in (5, 8)]
    assert torch.autograd.gradcheck(function, operands)
    assert torch.autograd.gradgradcheck(function, operands)


@pytest.mark.parametrize("include_self", [True, False])
def test_forward_mode(include_self: bool) -> None:
    x_mask, mask, index = on(1, 0, 1, 1), on(1, 1, 1, 1, 0, 1), torch.tensor([0, 0, 2, 2, 2, 3])
    x = torch.randn(4, 2, dtype=torch.float64)
    source = torch.randn(6, 2, dtype=torch.float64)
    source[0, 0], source[2:4, 1] = 0, 0  # one factor is 0, and two of one product

    def function(x: Tensor, source: Tensor) -> Tensor:
        start = mg.masked(torch.where(x_mask[:, None], x, nan), x_mask[:, None])
        brought = mg.masked(torch.where(mask[:, None], source, nan), mask[:, None])
        return start.index_reduce(0, index, brought, "mean", include_self=include_self).filled(0.0)

    operands = (x.requires_grad_(), source.requires_grad_())
    assert torch.autograd.gradcheck(function, operands, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, operands, check_fwd_over_rev=True)


def test_products_have_no_forward_mode() -> None:
    x = torch.ones(2)

    def function(x: Tensor) -> Tensor:
        return mg.masked(x, on(1, 0)).scatter_reduce(0, torch.tensor([0, 0]), x, "prod").filled(0.0)

    with pytest.raises(NotImplementedError, match="vjp"):
        torch.func.jvp(function, (x,), (x,))
