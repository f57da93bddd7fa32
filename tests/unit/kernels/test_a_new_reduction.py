"""Adding a reduction: what the page on kernels says that it takes, tried with a toy.

The toy is the sum of the entries that are negative. It is one formula, from which the loops over rows, columns and
segments are made; its gradient is another.
"""

from __future__ import annotations

import pytest
import torch

from maskgrad.kernels.cpu import segments
from maskgrad.kernels.cpu.compiler import formula
from maskgrad.kernels.cpu.loops import entrywise, write
from maskgrad.kernels.reductions.cpu import sum_of, summing


def reference(values, mask, dim):
    return torch.where(mask & (values < 0), values, 0).sum(dim, dtype=torch.float64)


# The cache on disk looks at the package's own files: a formula of a test that changes needs another name.
@formula
def debt(x, zero, one):
    return x if x < 0 else zero


@formula
def slope(x, y, share, b, c, d, n):
    return share if x < 0 else n[0]


SUMS, SEGMENTS, SLOPES = summing(debt), segments.summing(debt), entrywise(slope)


def soiled(mask, dtype=torch.float32):
    return torch.where(mask, torch.randn(mask.shape), torch.nan).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("dim", [(0,), (1,), (0, 2), (0, 1, 2)])
def test_one_formula_serves_rows_and_columns(dtype, dim):
    for mask in (torch.rand(40, 30, 9) < 0.6, (torch.rand(40, 30, 1) < 0.6).expand(40, 30, 9)):
        values = soiled(mask, dtype)
        found, present = sum_of(SUMS, values, mask, dim, False)
        torch.testing.assert_close(
            found.double(), reference(values.double(), mask, dim), rtol=1e-5, atol=1e-5
        )
        assert torch.equal(present, mask.any(dim))


@pytest.mark.parametrize("width", [(), (3,)])
def test_the_same_formula_serves_segments(width):
    values, pointers = torch.randn(200, *width), torch.tensor([0, 3, 3, 120, 200])
    for order in (None, torch.randperm(200)):
        given = values if order is None else values[order]
        expected = [
            reference(x, torch.ones_like(x, dtype=torch.bool), (0,))
            for x in given.tensor_split(pointers[1:-1])
        ]
        found = segments.summed(SEGMENTS, values, pointers, order, torch.float64)
        torch.testing.assert_close(found, torch.stack(expected))


def test_its_gradient_is_one_formula():
    mask = torch.rand(60, 50) < 0.5
    values = soiled(mask)
    grad = torch.randn(60, 1)
    expected = torch.where(mask & (values < 0), grad, 0)
    assert torch.equal(write(SLOPES, values, None, mask, grad), expected)
