"""Where the loops for CUDA could go wrong by themselves: digits, integers, products of zeros, labels that are none."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from tests.unit.kernels.bodies import cuda, reference
from tests.unit.kernels.segments import pointers_of

pytestmark = pytest.mark.usefixtures("device")


def test_large_integers_are_exact() -> None:
    values, mask = torch.full((10_001,), 2**50 + 1), torch.arange(10_001) % 2 == 0
    assert cuda.masked_sum(values, mask, (0,), False)[0].item() == 5001 * (2**50 + 1)
    ends = torch.tensor([[2**62 + 1, 2**62]])
    for largest in (True, False):
        found, _ = cuda.masked_extremum(ends, torch.ones_like(ends, dtype=torch.bool), (1,), False, largest)
        assert found.item() == 2**62 + largest
    assert cuda.segment_sum(torch.full((4,), 2**53 + 1), pointers_of([4]), None).item() == 4 * (2**53 + 1)


def test_sums_are_rounded_once_and_may_be_wider() -> None:
    values = torch.tensor([1e8, 1.0, -1e8, 1.0])
    assert cuda.segment_sum(values, pointers_of([4]), None).item() == 2.0
    for x in (values.half().clamp(max=100), values.long()):
        found, wanted = (
            body.segment_sum(x, pointers_of([4]), None, torch.float64) for body in (cuda, reference)
        )
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_dtype_casts_first(dtype: torch.dtype) -> None:
    mask = torch.rand(60, 7) < 0.5
    for source in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32):
        values = (torch.randn(60, 7) * 9).to(source)
        for name in ("masked_sum", "masked_mean"):
            found, _ = getattr(cuda, name)(values, mask, (0,), False, dtype)
            wanted, _ = getattr(reference, name)(values, mask, (0,), False, dtype)
            tolerance = {torch.float16: 2e-3, torch.float32: 2e-6, torch.float64: 1e-13}[dtype]
            torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance * 10)


def test_a_large_mean_costs_no_digits() -> None:
    values, mask = (torch.randn(4, 2000) * 16).round() / 16, torch.rand(4, 2000) < 0.5
    still, moved = (cuda.masked_variance(x, mask, (1,), False, 1.0)[0] for x in (values, values + 2.0**18))
    torch.testing.assert_close(moved, still, rtol=1e-6, atol=0)
    pointers = pointers_of([1500, 500])
    still, moved = (
        cuda.segment_variance(x, pointers, None, 1.0)[0] for x in (values[0], values[0] + 2.0**18)
    )
    torch.testing.assert_close(moved, still, rtol=1e-6, atol=0)
    far, every = torch.randn(4, 1500) + 3e4, torch.ones(4, 1500, dtype=torch.bool)
    exact = F.layer_norm(far.double(), (1500,))
    ours = cuda.masked_layer_norm(far, every, 1, None, None, 1e-5, True)[0]
    assert (ours - exact).abs().max() <= (F.layer_norm(far, (1500,)) - exact).abs().max() * 1.1


def test_a_zero_makes_a_product_zero() -> None:
    """What torch says of inf * 0 or 0 * 1e30 depends on the order."""
    rows, pointers = torch.tensor([[1e30, 1e30, 0.0], [0, math.inf, 1]]), pointers_of([3])
    product = cuda.masked_prod(rows, torch.ones_like(rows, dtype=torch.bool), (1,), False)[0]
    assert product[0].item() == 0
    product, rest, _ = cuda.segment_prod(torch.tensor([1e30, 1e30, 2]), pointers, None)
    assert (product.item(), rest.item()) == (math.inf, pytest.approx(2e60))


def test_a_label_that_is_no_class_has_the_loss_nan() -> None:
    input, mask = torch.randn(3, 5), torch.ones(3, 5, dtype=torch.bool)
    mask[2] = False
    loss, _ = cuda.masked_cross_entropy(input, mask, torch.tensor([5, -100, -1]), 0.0)
    assert loss.isnan().tolist() == [True, True, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_small_probabilities_and_large_logits_cost_no_digits(dtype: torch.dtype) -> None:
    """The logarithm of 1 + x keeps its digits for small x."""
    x = torch.logspace(-30, 0, 300, dtype=torch.float64).to(dtype)
    mask, none = torch.ones_like(x, dtype=torch.bool), torch.zeros_like(x)
    bound = torch.finfo(dtype).eps * 4
    exact = -torch.log1p(-x.double()).clamp(min=-100)
    found = cuda.masked_loss(x, none, mask, "probabilities", ()).double()
    torch.testing.assert_close(found, exact, rtol=bound, atol=0)
    logits = torch.linspace(0, 60, 300, dtype=torch.float64).to(dtype)
    found = cuda.masked_loss(logits, none + 1, mask, "logits", ()).double()
    torch.testing.assert_close(found, torch.log1p((-logits.double()).exp()), rtol=bound, atol=0)


def test_mixed_dtypes_and_many_halves() -> None:
    mse = ("distance", (1.0, math.inf, 1.0, 0.0))
    x, t, mask = torch.randn(50), torch.randn(50, dtype=torch.float64), torch.rand(50) < 0.5
    found = cuda.masked_loss(x, t, mask, *mse)
    torch.testing.assert_close(found, torch.where(mask, (x - t) ** 2, 0).float())
    slope = cuda.masked_loss_gradient(torch.ones(()), x, t, mask, *mse)
    torch.testing.assert_close(slope, torch.where(mask, 2 * (x - t), 0).float())
    for dtype in (torch.float16, torch.bfloat16):
        input, target = (torch.tensor(x, dtype=dtype).expand(50_000) for x in (10.0, 0.0))
        total, count = cuda.masked_loss_sum(input, target, torch.tensor(True).expand(50_000), *mse)
        assert (total.item(), count.item()) == (5_000_000, 50_000)


def test_rows_are_sorted_stably_and_refused_outside_the_table() -> None:
    indices = torch.randint(0, 9, (50,))
    for found, expected in zip(cuda.sort_rows(indices, 9), reference.sort_rows(indices, 9), strict=True):
        assert torch.equal(found, expected)
    for index in (-1, 9, 2**40):
        for function in (cuda.sort_rows, lambda x, n: cuda.merge_rows(x, torch.ones(3, 2), n)):
            with pytest.raises(IndexError, match=rf"must lie in \[0, 9\).*indices\[1\] is {index}"):
                function(torch.tensor([1, index, 2]), 9)


def test_duplicates_are_rounded_once() -> None:
    zeros = torch.zeros(4, dtype=torch.int64)
    assert cuda.merge_rows(zeros, torch.tensor([1e8, 1.0, -1e8, 1.0]), 1)[1].tolist() == [2.0]
    for dtype in (torch.float16, torch.bfloat16):
        ones = torch.ones(4096, 2, dtype=dtype)
        assert cuda.merge_rows(torch.full((4096,), 3), ones, 10)[1].tolist() == [[4096.0, 4096.0]]
