"""masked_variance and segment_variance: PyTorch's of what is specified."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from maskgrad import kernels
from maskgrad.kernels import use_kernels
from tests.unit.kernels.masks import MaskedSuite
from tests.unit.kernels.segments import SegmentSuite, rows_of
from tests.unit.kernels.suite import run


class TestMaskedVariance(MaskedSuite):
    """Of as few entries as the correction takes away the sum of squares, without a gradient."""

    kernel = "masked_variance"
    variants = ((1.0,), (0.0,), (2.5,))
    widens = True

    def operands(self, shape: tuple[int, ...]) -> tuple[Tensor, ...]:
        return (torch.randn(shape) * 3 + 5,)

    def first(self, operands: Sequence[Tensor], where: Any, variant: tuple[Any, ...]) -> Tensor:
        variance, _, count = self.call(operands, where, variant)
        return torch.where(count > variant[0], variance, 0)


class TestSegmentVariance(SegmentSuite):
    kernel = "segment_variance"
    variants = ((1.0,), (0.0,), (0.5,))
    widens = True

    operands = TestMaskedVariance.operands

    def call(self, operands: Sequence[Tensor], where: Any, variant: tuple[Any, ...]) -> Any:
        """What a caller reads: he calls estimates of too few entries unspecified."""
        found = super().call(operands, where, variant)
        enough = (where[0].diff() > variant[0]).view(-1, *(1,) * (found.ndim - 1))
        return torch.where(enough, found, 0)

    # the reference's gradient beside an infinity is NaN: see below
    special = tuple(row for row in SegmentSuite.special if all(map(math.isfinite, row)))


@pytest.mark.parametrize("body", ["reference", "cpu"])
@pytest.mark.parametrize("order", [None, torch.cat([torch.randperm(45), 45 + torch.randperm(45)])])
@pytest.mark.own_dtype("bfloat16", "float16")
def test_what_is_not_finite_stays_in_its_segment(body: str, order: Tensor | None) -> None:
    for strange in (math.nan, math.inf, -math.inf, 1e38):
        values = torch.randn(90)
        values[50], values[70] = strange, 1.0
        rows = rows_of([45, 45], order)
        with use_kernels(body):
            mean, found = kernels.segment_mean(values, rows), kernels.segment_variance(values, rows, 1.0)
        wanted = torch.stack([values[:45].double().mean(), values[45:].double().mean()])
        torch.testing.assert_close(mean.double(), wanted, rtol=1e-5, atol=1e-6, equal_nan=True)
        torch.testing.assert_close(found[0], torch.var(values[:45]), rtol=1e-5, atol=1e-6)
        assert not found[1].isfinite() or strange == 1e38


@pytest.mark.parametrize("order", [None, torch.randperm(4000)])
@pytest.mark.own_dtype("bfloat16", "float16")
def test_a_large_mean_of_a_segment_costs_no_digits(order: Tensor | None) -> None:
    values, rows = (torch.randn(4000) * 16).round() / 16, rows_of([2000, 20, 1980], order)
    moved = (values + 2.0**18).requires_grad_()
    with use_kernels("cpu"):
        found = kernels.segment_variance(moved, rows)
    torch.testing.assert_close(found, kernels.segment_variance(values, rows), rtol=1e-6, atol=0)
    leaf = values.double().requires_grad_()
    part = (leaf if order is None else leaf[order])[:2000]
    slope, wanted = torch.autograd.grad(found[0], moved)[0], torch.autograd.grad(torch.var(part), leaf)[0]
    torch.testing.assert_close(slope.double(), wanted, rtol=1e-5, atol=1e-9)


def difficult():
    """Name -> float32 values of shape (100, 1500) that a careless algorithm gets wrong."""
    values = torch.randn(100, 1500)
    jump = torch.randn(100, 1500) + 1e6
    jump[:25], jump[:, :70] = 0, 0
    first = torch.randn(100, 1500)
    first[0], first[:, 0] = 1e8, 1e8
    return {
        "mean 1e6": values + 1e6,
        "mean -3e7": values * 10 - 3e7,
        "constant": torch.full((100, 1500), 0.1),
        "sorted": torch.arange(150_000).float().view(100, 1500),
        "a jump": jump,
        "an outlier at the start": first,
        "squares beyond float32": values * 1e19,
        "squares below float32": values * 1e-18,
        "sums beyond float32": values.sign() * 3e38,
        "tiny differences": torch.where(values > 0, 1.0, 1.0 + 2**-23),
    }


@pytest.mark.parametrize("name", list(difficult()))
@pytest.mark.parametrize("dim", [(0,), (1,), (0, 1)])
@pytest.mark.own_dtype
def test_no_digits_are_lost(name, dim):
    values, mask = difficult()[name], torch.rand(100, 1500) < 0.5
    mask[:9, :9], mask[60:, 3] = False, False
    expected, mean, count = run("reference", "masked_variance", values.double(), mask, dim, False, 1.0)
    holes = values.masked_fill(~mask, math.nan)
    variance, center, number = run("cpu", "masked_variance", holes, mask, dim, False)
    assert torch.equal(number, count)
    assert ((center - mean).abs() <= 1e-6 * (mean.abs() + expected.nan_to_num().sqrt())).all()
    torch.testing.assert_close(variance, expected.float(), rtol=3e-6, atol=0)


@pytest.mark.every
@pytest.mark.parametrize("forced", ["reference", "cpu"])
@pytest.mark.parametrize("layout", [torch.strided, torch.sparse_coo, torch.sparse_csr])
def test_equal_entries_have_no_deviation(forced, layout):
    """As in PyTorch: rounding of their mean made noise of it, and a gradient of 0.18."""
    with use_kernels(forced):
        for width, dtype in itertools.product((3, 100, 1000), (torch.float16, torch.float32, torch.float64)):
            mask = torch.rand(3, width) < 0.8
            leaf = torch.full((3, width), 0.1, dtype=dtype, requires_grad=True)
            x = mg.masked(torch.where(mask, leaf, float("nan")), mask)
            found = (x if layout == torch.strided else x.to_sparse(layout=layout)).std(1).to_dense()
            assert not found.filled(0).count_nonzero()
            assert not torch.autograd.grad(found.filled(0).sum(), leaf)[0].count_nonzero()


@pytest.mark.parametrize("scale", [1e150, 1e-150])
def test_float64_near_its_ends(scale):
    mask, values = torch.rand(200, 200) < 0.5, torch.randn(200, 200, dtype=torch.float64)
    for dim in ((0,), (1,), (0, 1)):
        expected = run("reference", "masked_variance", values, mask, dim, False, 1.0)[0] * scale * scale
        result = run("cpu", "masked_variance", values * scale, mask, dim, False)[0]
        torch.testing.assert_close(result, expected, rtol=1e-12, atol=0)


@pytest.mark.own_dtype
def test_standardizing_with_a_large_mean_costs_no_more_digits_than_in_torch():
    values, mask = torch.randn(50, 3000) + 3e4, torch.ones(50, 3000, dtype=torch.bool)
    exact, theirs = (torch.nn.functional.layer_norm(x, (3000,)) for x in (values.double(), values))
    ours, *_ = kernels.standardized(values, mask, (1,), 1e-5)
    assert (ours - exact).abs().max() <= (theirs - exact).abs().max() * 1.1


@pytest.mark.parametrize("correction", [0.5, 1.5, -1, -0.5])
def test_any_correction(correction: float) -> None:
    values, mask = torch.randn(6, 9, dtype=torch.float64), torch.rand(6, 9) < 0.7
    found = mg.masked(values, mask).var(1, correction=correction).filled(0)
    expected = [row[known].var(correction=correction) for row, known in zip(values, mask, strict=True)]
    torch.testing.assert_close(found, torch.stack(expected))
