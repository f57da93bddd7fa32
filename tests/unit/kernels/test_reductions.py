"""masked_sum, masked_mean, masked_count and segment_sum, segment_mean, segment_expand."""

from __future__ import annotations

import math

import pytest
import torch

import maskgrad as mg
from maskgrad import kernels
from maskgrad.kernels import use_kernels
from tests.unit.kernels.masks import LAYOUTS, MaskedSuite
from tests.unit.kernels.segments import SegmentSuite, rows_of
from tests.unit.kernels.suite import INTEGERS, run


class TestMaskedSum(MaskedSuite):
    kernel = "masked_sum"
    integers = INTEGERS


class TestMaskedMean(MaskedSuite):
    kernel = "masked_mean"


class TestSegmentSum(SegmentSuite):
    kernel = "segment_sum"
    widens = True
    integers = (torch.int32, torch.int64)

    def result_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return dtype if dtype in self.integers else super().result_dtype(dtype)


class TestSegmentMean(SegmentSuite):
    kernel = "segment_mean"
    widens = True


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_entries_are_counted_along_any_dimensions(layout: str) -> None:
    shape, _, lay = LAYOUTS[layout]
    mask = lay(torch.rand(shape) < 0.5)
    for dim in ((0,), (1,), (0, 2), (-1, 1), (0, 1, 2)):
        found = run("cpu", "masked_count", mask, dim, True)
        torch.testing.assert_close(found, mask.sum(dim, keepdim=True))


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
    for source in (torch.float16, torch.float64, *([] if dtype.is_complex else [torch.int32])):
        values = (torch.randn(300, 7) * 9).to(source)
        expected = run("reference", name, values.to(dtype), mask, (0,), False)[0]
        leaf = values.requires_grad_(source.is_floating_point)
        result = run("cpu", name, leaf, mask, (0,), False, dtype)[0]
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
@pytest.mark.own_dtype
def test_the_mean_of_halves_outlives_their_sum(body: str) -> None:
    values = torch.full((70_000,), 1000.0, dtype=torch.float16, requires_grad=True)
    mean, count = run(body, "masked_mean", values, torch.ones(70_000, dtype=torch.bool), (0,), False)
    assert (mean.item(), count.item()) == (1000.0, 70_000)
    mean.backward(torch.tensor(1000.0, dtype=torch.float16))
    torch.testing.assert_close(values.grad.float(), torch.full((70_000,), 1000 / 70_000), rtol=1e-3, atol=0)


@pytest.mark.parametrize("body", ["reference", "cpu"])
@pytest.mark.own_dtype("bfloat16", "float16")
def test_the_dtype_of_a_sum_of_segments_may_be_asked_for(body: str) -> None:
    rows, values = rows_of([3]), torch.tensor([1e8, 1.0, -1e8])
    with use_kernels(body):
        for x in (values, values.long(), values.clamp(-100, 101).half()):
            found = kernels.segment_sum(x, rows, torch.float64)
            assert (found.dtype, found.item()) == (torch.float64, 1.0 + (x.dtype == torch.float16))


@pytest.mark.parametrize("name", ["sum", "mean", "amax", "amin"])
def test_what_is_expanded_is_reduced_without_a_copy(name: str) -> None:
    many = 10**12  # entries: no machine here has the memory
    value, mask = torch.tensor([[3.0], [math.nan], [5.0]]), torch.tensor([[True], [False], [True]])
    x = mg.masked(value.expand(3, many), mask.expand(3, many))
    result = getattr(x, name)(1)
    assert result.mask.tolist() == [True, False, True]
    expected = torch.tensor([3e12, 0, 5e12] if name == "sum" else [3.0, 0, 5])
    torch.testing.assert_close(result.filled(0), expected)
    whole = mg.masked(getattr(x, name)((0, 1))).filled(math.nan)
    torch.testing.assert_close(whole.item(), {"sum": 8e12, "mean": 4.0, "amax": 5.0, "amin": 3.0}[name])
    assert x.num_specified() == 2 * many
