"""masked_sum, masked_mean, masked_count and segment_sum, segment_mean, segment_expand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from maskgrad import kernels
from maskgrad.kernels import use_kernels
from tests.unit.kernels.deletion import run
from tests.unit.kernels.masks import MaskedSuite
from tests.unit.kernels.segments import SegmentSuite, rows_of

INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool)


class TestMaskedSum(MaskedSuite):
    kernel = "masked_sum"
    integers = INTEGERS
    complex = True

    def alone(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sum(), torch.ones((), dtype=torch.float64)


class TestMaskedMean(MaskedSuite):
    kernel = "masked_mean"
    complex = True

    def alone(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.mean(), torch.tensor(float(len(x)), dtype=torch.float64)


class TestMaskedCount(MaskedSuite):
    """Of a mask that may repeat; the values only say where it is."""

    kernel = "masked_count"
    derivable = False

    def call(self, operands: Sequence[Tensor], where: Any, variant: tuple[Any, ...]) -> Any:
        return super().call([], where, variant)

    def alone(self, x: Tensor) -> Tensor:
        return torch.tensor(float(len(x)), dtype=torch.float64)

    def result_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return torch.int64

    test_mistakes_in_the_mask_are_named = None
    test_what_is_not_finite_surfaces_as_in_torch = None


class TestSegmentSum(SegmentSuite):
    kernel = "segment_sum"
    widens = True
    integers = (torch.int32, torch.int64)

    def alone(self, x: Tensor) -> Tensor:
        return x.sum()

    def result_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return dtype if dtype in self.integers else super().result_dtype(dtype)


class TestSegmentMean(SegmentSuite):
    kernel = "segment_mean"
    widens = True
    complex = True

    def alone(self, x: Tensor) -> Tensor:
        return x.mean()


def test_large_integers_are_exact() -> None:
    values = torch.full((10_001,), 2**50 + 1)
    mask = torch.arange(10_001) % 2 == 0
    assert kernels.masked_sum(values, mask, (0,), False)[0].item() == 5001 * (2**50 + 1)


@pytest.mark.parametrize("body", ["reference", "cpu"])
def test_the_mean_of_integers_needs_a_dtype(body: str) -> None:
    values, mask = torch.arange(6), torch.ones(6, dtype=torch.bool)
    with pytest.raises(RuntimeError, match=r"could not infer output dtype.*Got: torch.int64; pass dtype"):
        run(body, "masked_mean", values, mask, (0,), False)
    with pytest.raises(RuntimeError, match=r"Optional dtype must be.*Got: torch.int32"):
        run(body, "masked_mean", values, mask, (0,), False, torch.int32)
    assert run(body, "masked_mean", values, mask, (0,), False, torch.float32)[0].item() == 2.5


@pytest.mark.parametrize("name", ["masked_sum", "masked_mean"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.complex64])
def test_dtype_casts_first(name: str, dtype: torch.dtype) -> None:
    """The gradient that goes back is in the type of the values."""
    mask = torch.rand(300, 7) < 0.5
    for source in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32):
        if dtype.is_complex and not source.is_floating_point:
            continue
        values = (torch.randn(300, 7) * 9).to(source)
        expected = run("reference", name, values.to(dtype), mask, (0,), False)[0]
        leaf = values.requires_grad_(source.is_floating_point)
        with use_kernels("cpu"):
            result = getattr(kernels, name)(leaf, mask, (0,), False, dtype)[0]
        assert result.dtype == dtype
        tolerance = {torch.float16: 4e-3, torch.float64: 1e-12}.get(dtype, 4e-6)
        torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance * 10)
        if leaf.requires_grad and name == "masked_sum":
            result.real.sum().backward()
            torch.testing.assert_close(leaf.grad, mask.to(source))


def test_no_more_rounding_than_torch_sum() -> None:
    values = torch.rand(1 << 18) + 1000
    exact = math.fsum(values.tolist())
    mask = torch.ones_like(values, dtype=torch.bool)
    for shape, dim in [((-1,), (0,)), ((-1, 64), (0, 1)), ((2048, -1), (0,))]:
        ours = kernels.masked_sum(values.view(shape), mask.view(shape), dim, False)[0].double().sum().item()
        theirs = values.view(shape).sum(dim).double().sum().item()
        assert abs(ours - exact) <= abs(theirs - exact) + 1e-7 * exact


@pytest.mark.parametrize("body", ["reference", "cpu"])
def test_the_mean_of_halves_outlives_their_sum(body: str) -> None:
    values = torch.full((70_000,), 1000.0, dtype=torch.float16, requires_grad=True)
    mask = torch.ones(70_000, dtype=torch.bool)
    with use_kernels(body):
        mean, count = kernels.masked_mean(values, mask, (0,), False)
    assert (mean.item(), count.item()) == (1000.0, 70_000)
    mean.backward(torch.tensor(1000.0, dtype=torch.float16))
    torch.testing.assert_close(values.grad.float(), torch.full((70_000,), 1000 / 70_000), rtol=1e-3, atol=0)


def test_a_nan_gradient_stays_where_it_is_specified() -> None:
    values, mask = torch.randn(20, 10, requires_grad=True), torch.rand(20, 10) < 0.5
    with use_kernels("cpu"):
        result, _ = kernels.masked_mean(values, mask, (1,), False)
        result.backward(torch.full((20,), math.nan))
    assert torch.equal(values.grad.isnan(), mask)


@pytest.mark.parametrize("body", ["reference", "cpu"])
def test_the_dtype_of_a_sum_of_segments_may_be_asked_for(body: str) -> None:
    rows, values = rows_of([3]), torch.tensor([1e8, 1.0, -1e8])
    with use_kernels(body):
        found = kernels.segment_sum(values, rows, torch.float64)
        assert (found.dtype, found.item()) == (torch.float64, 1.0)
        halves = values.half().clamp(max=100)
        assert kernels.segment_sum(halves, rows, torch.float64).dtype == torch.float64
        assert kernels.segment_sum(values.long(), rows, torch.float64).item() == 1.0
