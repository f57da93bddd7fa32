"""torch.sparse's functions and quantized layers on MaskedTensors; the truth is a loop over the specified entries."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg

LAYOUTS = ["strided", "coo", "csr", "csc", "bsr", "bsc", "jagged"]
MASK = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 0, 0]]).bool()
DATA = torch.tensor([[1.0, -2.0, 9.0, 9.0], [0.5, 3.0, 0.0, -1.0], [9.0] * 4, [4.0, 9.0, 9.0, 9.0]])
DENSE = torch.tensor([[1.0, 2.0, 0.5], [-1.0, 0.0, 3.0], [2.0, 2.0, 1.0], [0.25, -3.0, 1.0]])


def quantized(module: nn.Module, **options: Any) -> Any:
    quantization = pytest.importorskip("torch.ao.quantization")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return quantization.quantize_dynamic(nn.Sequential(module), {type(module)}, **options)


def masked(layout: str, leaf: Tensor | None = None) -> mg.MaskedTensor:
    """Garbage under the mask, where the layout has a place for it."""
    data = DATA if leaf is None else leaf
    x = mg.masked(torch.where(MASK, data, math.nan), MASK)
    if layout == "strided":
        return x
    if layout == "jagged":
        return x.to_jagged()
    blocks = (1, 1) if layout in ("bsr", "bsc") else None
    return x.to_sparse(layout=getattr(torch, f"sparse_{layout}"), blocksize=blocks)


def products(reduce: Callable[[list[float]], float]) -> tuple[Tensor, Tensor]:
    """``reduce`` over the products of specified factors, and where there is one."""
    found, known = torch.zeros(4, 3), torch.zeros(4, 3, dtype=torch.bool)
    for i in range(4):
        for j in range(3):
            each = [float(DATA[i, k] * DENSE[k, j]) for k in range(4) if MASK[i, k]]
            if each:
                found[i, j], known[i, j] = reduce(each), True
    return found, known


def check(found: Any, values: Tensor, mask: Tensor) -> None:
    assert isinstance(found, mg.MaskedTensor)
    assert found.mask.equal(mask)
    torch.testing.assert_close(found.filled(0.0), torch.where(mask, values, 0))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "function", [torch.sparse.mm, torch.smm, torch.hspmm, mg.MaskedTensor.smm], ids=lambda f: f.__name__
)
def test_products(function: Any, layout: str) -> None:
    check(function(masked(layout), DENSE), *products(sum))


@pytest.mark.parametrize("layout", ["strided", "coo", "csr"])
@pytest.mark.parametrize(
    ("reduce", "truth"), [("mean", lambda each: sum(each) / len(each)), ("amax", max), ("amin", min)]
)
def test_products_that_are_reduced_otherwise(reduce: str, truth: Any, layout: str) -> None:
    check(torch.sparse.mm(masked(layout), DENSE, reduce), *products(truth))
    with pytest.raises(ValueError, match=r"reduce must be sum, mean, amax or amin, found 'median'"):
        torch.sparse.mm(masked(layout), DENSE, "median")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sums_and_softmax(layout: str) -> None:
    x = masked(layout)
    total = torch.sparse.sum(x)
    assert isinstance(total, Tensor)
    assert total == DATA[MASK].sum()
    rows = torch.tensor([DATA[i][MASK[i]].sum() for i in range(4)], dtype=torch.float64)
    check(torch.sparse.sum(x, 1, dtype=torch.float64), rows, MASK.any(1))
    for function, truth in (
        (torch.sparse.softmax, torch.softmax),
        (torch.sparse.log_softmax, torch.log_softmax),
    ):
        expected = torch.zeros(4, 4)
        for i in range(4):
            expected[i, MASK[i]] = truth(DATA[i][MASK[i]], 0)
        found = function(x, 1)
        assert found.layout == x.layout
        check(found, expected, MASK)
        assert function(x, 1, dtype=torch.float64).dtype == torch.float64


@pytest.mark.parametrize("layout", LAYOUTS)
def test_products_are_added(layout: str) -> None:
    found, known = products(sum)
    for function in (torch.sparse.addmm, torch.sspaddmm):
        check(function(torch.ones(4, 3), masked(layout), DENSE, beta=3.0, alpha=0.5), 3 + 0.5 * found, known)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_products_are_sampled(layout: str) -> None:
    left, right = torch.arange(8.0).view(4, 2), torch.arange(8.0).view(2, 4) - 3
    for beta in (0.0, 2.0):
        found = torch.sparse.sampled_addmm(masked(layout), left, right, beta=beta, alpha=0.5)
        assert found.layout == masked(layout).layout
        check(found, 0.5 * left @ right + (beta * DATA if beta else 0), MASK)


def test_products_of_masked_factors_are_sampled_at_a_sparse_tensor() -> None:
    places = torch.eye(4).to_sparse_csr()
    left = mg.masked(
        torch.full((4, 2), math.nan).index_fill(1, torch.tensor([0]), 2.0), torch.tensor([[1, 0]]).bool()
    )
    found = torch.sparse.sampled_addmm(places, left, torch.ones(2, 4))
    check(found, 3.0 * torch.eye(4), torch.eye(4).bool())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_entries_at_the_places_of_a_mask(layout: str) -> None:
    places = (torch.arange(16).view(4, 4) % 3 > 0) & (DATA != 1)
    other = torch.where(places, 5.0, 0.0)
    x = masked(layout)
    for mask in (other.to_sparse(), other.to_sparse_csr(), mg.masked(other, places)):
        check(x.sparse_mask(mask), DATA, MASK & places)
    found = torch.where(MASK, DATA, 7.0).sparse_mask(x)
    assert found.layout == x.layout
    check(found, DATA, MASK)


def test_gradients_are_those_of_the_products() -> None:
    leaves = [DATA.clone().requires_grad_() for _ in range(2)]
    torch.sparse.mm(masked("csr", leaves[0]), DENSE).filled(0.0).square().sum().backward()
    (torch.where(MASK, leaves[1], 0) @ DENSE).square().sum().backward()
    torch.testing.assert_close(leaves[0].grad, leaves[1].grad)


def test_what_has_no_meaning_has_its_public_name() -> None:
    square = mg.masked(DATA, MASK).to_sparse()
    with pytest.raises(mg.UndefinedOnMaskedError, match=r"^torch\.sparse\.spsolve is undefined.*x\.filled"):
        torch.sparse.spsolve(square, DENSE)
    with pytest.raises(
        mg.UnsupportedOperationError, match=r"^torch\.sparse\.spdiags.*mg\.masked\(torch\.sparse\.spdiags"
    ):
        torch.sparse.spdiags(square, torch.tensor([0, 1, 2, 3]), (4, 4))


def test_is_nonzero() -> None:
    for number in (0.0, 2.0):
        x = mg.masked(torch.tensor([number]), torch.tensor([True]))
        assert torch.is_nonzero(x) is x.is_nonzero() is bool(number)
    with pytest.raises(mg.UnspecifiedValueError, match=r"x\.filled"):
        torch.is_nonzero(mg.masked(torch.tensor(2.0), torch.tensor(False)))


@pytest.mark.parametrize("dtype", [torch.qint8, torch.float16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layers_that_are_quantized(layout: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = quantized(nn.Linear(4, 3), dtype=dtype)
    if layout == "jagged":
        rows, there = torch.randn(4, 3, 4), torch.arange(3) < torch.tensor([[3], [0], [1], [2]])
        found = model(mg.masked(torch.where(there[..., None], rows, 1e38), there[..., None]).to_jagged())
        assert found.layout is torch.jagged
        values = torch.where(there[..., None], rows, 0)
        check(found, model(values), there[..., None].expand(4, 3, 3))
    else:
        check(
            model(masked(layout)), model(torch.where(MASK, DATA, 0)), MASK.any(1, keepdim=True).expand(4, 3)
        )


def test_other_modules_that_are_quantized_refuse() -> None:
    cell = quantized(nn.LSTMCell(4, 3))
    with pytest.raises(
        mg.UnsupportedOperationError, match=r"give the module x\.filled\(0\) and x\.mask apart"
    ):
        cell(masked("strided"))
