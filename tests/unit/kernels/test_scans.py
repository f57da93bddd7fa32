"""masked_cumsum: both bodies against torch.cumsum of each vector without its unspecified entries."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings

import maskgrad as mg
from maskgrad import kernels
from maskgrad.kernels import use_kernels
from tests.effort import examples
from tests.unit.kernels import oracles
from tests.unit.kernels.bodies import cpu, reference
from tests.unit.kernels.layouts import layouts
from tests.unit.kernels.problems import problems

BODIES = [reference, cpu]
IDS = ["reference", "cpu"]
ROUNDING = {torch.float64: 1e-13, torch.float32: 1e-5, torch.float16: 2e-2, torch.bfloat16: 1e-1}


@pytest.fixture(autouse=True)
def _compiled_bodies_for_small_tensors_too():
    with use_kernels("cpu"):
        yield


def by_deletion(values, mask, reverse):
    """Of a matrix, along its rows, in double precision."""
    result = torch.zeros(values.shape, dtype=torch.float64)
    for row, x, here in zip(result, values.double(), mask, strict=True):
        known = x[here].flip(0) if reverse else x[here]
        row[here] = known.cumsum(0).flip(0) if reverse else known.cumsum(0)
    return result


@pytest.mark.parametrize("body", BODIES, ids=IDS)
@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("garbage", oracles.GARBAGE)
@pytest.mark.parametrize("reverse", [False, True])
def test_sums_up_to_each_entry(body, dtype, garbage, reverse):
    mask = torch.rand(23, 37) < 0.5
    mask[3] = False
    for known in (mask, mask[:, :1].expand(23, 37)):
        values = oracles.soiled(torch.randn(23, 37).to(dtype), known, garbage)
        expected = by_deletion(values, known, reverse)
        for x, m, dim in (
            (values, known, 1),
            (values.t(), known.t(), 0),
            (values.t().contiguous(), known.t(), 0),
        ):
            found = body.masked_cumsum(x, m, dim, reverse)
            assert found.dtype == dtype
            found = found if dim else found.t()
            torch.testing.assert_close(found.double(), expected, rtol=ROUNDING[dtype], atol=ROUNDING[dtype])
            assert not found[~known].count_nonzero()


@pytest.mark.parametrize("layout", list(layouts()))
def test_any_strides(layout):
    values, mask = layouts()[layout]
    for dim in range(values.ndim):
        for reverse in (False, True):
            found = cpu.masked_cumsum(values, mask, dim, reverse)
            torch.testing.assert_close(found, reference.masked_cumsum(values, mask, dim, reverse))


@settings(max_examples=examples(80))
@given(problems(dtypes=(torch.float64, torch.float32), min_dims=1))
def test_forward_and_backward_agree_with_the_reference(problem):
    values, mask, (dim, *_) = problem.values, problem.mask, problem.dim
    outcomes = []
    for body in IDS:
        leaf = values.clone().requires_grad_()
        with use_kernels(body):
            result = kernels.masked_cumsum(leaf, mask, dim)
            weight = oracles.soiled(result.detach().cos(), mask, 0.0)
            (grad,) = torch.autograd.grad(result, leaf, weight)
        outcomes.append((result.detach(), grad))
    for mine, theirs in zip(*outcomes, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("body", IDS)
def test_first_and_second_derivatives(body):
    mask = torch.rand(3, 4, 2) < 0.6
    values = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)
    with use_kernels(body):
        for dim in (0, 1, -1):
            for reverse in (False, True):
                assert torch.autograd.gradcheck(
                    lambda x, d=dim, r=reverse: kernels.masked_cumsum(x**3, mask, d, r) ** 2, values
                )
                assert torch.autograd.gradgradcheck(
                    lambda x, d=dim, r=reverse: kernels.masked_cumsum(x**3, mask, d, r) ** 2, values
                )


def test_infinities_stay_on_their_side():
    values = torch.tensor([[1.0, torch.inf, 2.0, -torch.inf, 1.0], [torch.nan, 1.0, torch.nan, 2.0, 3.0]])
    mask = torch.tensor([[True] * 5, [False, True, True, True, False]])
    for body in BODIES:
        found = body.masked_cumsum(values, mask, 1, False)
        inf, nan = torch.inf, torch.nan
        right = torch.tensor([[1.0, inf, inf, nan, nan], [0.0, 1.0, nan, nan, 0.0]])
        torch.testing.assert_close(found, right, equal_nan=True)


@pytest.mark.parametrize("shape", [(3, 400_001), (700, 1301), (100_000, 4)])
def test_results_do_not_depend_on_the_number_of_threads(shape):
    values, mask = torch.randn(shape), torch.rand(shape) < 0.5
    threads, results = torch.get_num_threads(), []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            results.append([kernels.masked_cumsum(values, mask, d, r) for d in (0, 1) for r in (False, True)])
    finally:
        torch.set_num_threads(threads)
    for result in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(result, results[0], strict=True))


def test_the_line_runs_it():
    """``x.cumsum(1)``, in any dtype, against the same on a plain tensor of zeros."""
    values, mask = torch.randn(9, 40), torch.rand(9, 40) < 0.6
    leaf = torch.where(mask, values, torch.nan).requires_grad_()
    for dtype in (None, torch.float64):
        found = mg.masked(leaf, mask).cumsum(-1, dtype=dtype)
        expected = torch.where(mask, values, 0).cumsum(1, dtype=dtype)
        torch.testing.assert_close(found.filled(0.0), torch.where(mask, expected, 0))
        (grad,) = torch.autograd.grad(found.filled(0.0).sum(), leaf)
        right = torch.where(mask, mask.flip(1).cumsum(1).flip(1), 0).float()
        torch.testing.assert_close(grad, right)
