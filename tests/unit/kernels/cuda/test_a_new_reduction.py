"""Adding a reduction on CUDA devices: one accumulator, tried with the sum of the entries that are negative."""

from __future__ import annotations

import pytest
import torch
import triton.language as tl

from maskgrad.kernels.cuda.compiler import compiled
from maskgrad.kernels.cuda.loops import Accumulator, over_segments, reduce, totals, write

pytestmark = pytest.mark.usefixtures("device")


@compiled
def start(ROWS: tl.constexpr, COLUMNS: tl.constexpr, KIND: tl.constexpr, ACC: tl.constexpr):
    return (tl.zeros((ROWS, COLUMNS), ACC),)


@compiled
def step(state, there, x, at, n, KIND: tl.constexpr):
    return (state[0] + tl.where(there & (x[0] < 0), x[0], 0),)


@compiled
def finish(state, n, KIND: tl.constexpr):
    return (tl.sum(state[0].to(tl.float64), axis=1),)


@compiled
def slope(x, at, n, KIND: tl.constexpr):
    return tl.where(x[0] < 0, x[1], 0)


DEBTS = Accumulator(start, step, finish)


def expected(values, mask, dim):
    return torch.where(mask & (values < 0), values, 0).sum(dim, dtype=torch.float64)


@pytest.mark.parametrize("dim", [(0,), (1,), (0, 1)])
def test_an_accumulator_reduces_tables(dim):
    mask = torch.rand(30, 50) < 0.5
    values = torch.where(mask, torch.randn(30, 50), torch.nan)
    found, view = reduce(DEBTS, mask, (values,), dim, (torch.float64,))
    torch.testing.assert_close(
        totals(found, view, False)[0], expected(values, mask, dim), rtol=1e-6, atol=1e-6
    )


def test_the_same_accumulator_reduces_segments():
    values, pointers = torch.randn(60), torch.tensor([0, 20, 20, 60])
    (found,) = over_segments(DEBTS, pointers, None, (values,), (torch.float64,))
    parts = [values[:20], values[:0], values[20:]]
    torch.testing.assert_close(found, torch.stack([x.clamp(max=0).sum(dtype=torch.float64) for x in parts]))


def test_its_gradient_is_one_formula():
    mask = torch.rand(30, 50) < 0.5
    values, grad = torch.where(mask, torch.randn(30, 50), torch.nan), torch.randn(30, 1)
    found = write(slope, torch.empty(30, 50), mask, values, grad)
    assert torch.equal(found, torch.where(mask & (values < 0), grad, 0))
