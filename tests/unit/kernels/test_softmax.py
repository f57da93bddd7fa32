"""masked_softmax and masked_logsumexp: both bodies against torch on each vector without its unspecified entries."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings

from maskgrad import kernels
from maskgrad.kernels import use_kernels
from maskgrad.kernels.softmax import masked_softmax_backward
from tests.effort import examples
from tests.unit.kernels import oracles
from tests.unit.kernels.bodies import cpu, reference
from tests.unit.kernels.layouts import SHAPES_AND_DIMS, layouts
from tests.unit.kernels.problems import problems

BODIES = [reference, cpu]
IDS = ["reference", "cpu"]
ROUNDING = {torch.float64: 1e-14, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
FLOATS = tuple(ROUNDING)
inf, nan = math.inf, math.nan


@pytest.fixture(autouse=True)
def _compiled_bodies_for_small_tensors_too():
    with use_kernels("cpu"):
        yield


def by_deletion(function, values, mask, dim, nothing):
    """``function`` of each vector along ``dim``, without its unspecified entries; ``nothing`` in their place."""
    result = torch.full(values.shape, nothing, dtype=torch.float64).movedim(dim, -1)
    vectors, masks = values.double().movedim(dim, -1), mask.movedim(dim, -1)
    for place in itertools.product(*(range(n) for n in result.shape[:-1])):
        here = masks[place]
        if here.any():
            result[place][here] = function(vectors[place][here])
    return result.movedim(-1, dim)


@pytest.mark.parametrize("body", BODIES, ids=IDS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("garbage", oracles.GARBAGE)
def test_softmax_is_that_of_the_specified_entries(body, dtype, garbage):
    mask = torch.rand(23, 37) < 0.5
    mask[3], mask[:, 5] = False, False
    values = oracles.soiled(torch.randn(23, 37).to(dtype), mask, garbage)
    for dim in (0, 1):
        for logarithm, function in ((False, torch.softmax), (True, torch.log_softmax)):
            result = body.masked_softmax(values, mask, dim, logarithm)
            assert result.dtype == dtype
            expected = by_deletion(lambda x, f=function: f(x, 0), values, mask, dim, -inf if logarithm else 0)
            tolerance = ROUNDING[dtype]
            # A logarithm near 0 is the difference of larger numbers; the smallest halves are subnormal.
            smallest = tolerance * 10 if logarithm else torch.finfo(dtype).tiny
            torch.testing.assert_close(result.double(), expected, rtol=tolerance, atol=smallest)


@pytest.mark.parametrize("body", BODIES, ids=IDS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("shape", "dim"), SHAPES_AND_DIMS)
def test_logsumexp_over_any_dimensions(body, dtype, shape, dim):
    mask = torch.rand(shape) < 0.6
    values = oracles.soiled(torch.randn(shape).to(dtype), mask, nan)
    for keepdim in (False, True):
        groups, expected_shape = oracles.specified(values, mask, dim, keepdim)
        result, present = body.masked_logsumexp(values, mask, dim, keepdim)
        assert result.dtype == dtype
        assert result.shape == present.shape == torch.Size(expected_shape)
        assert present.flatten().tolist() == [bool(g) for g in groups]
        expected = [torch.tensor(g, dtype=torch.float64).logsumexp(0) if g else -inf for g in groups]
        tolerance = ROUNDING[dtype]
        expected = torch.tensor(expected, dtype=torch.float64).reshape(expected_shape)
        torch.testing.assert_close(result.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("layout", list(layouts()))
def test_any_strides(layout):
    values, mask = layouts()[layout]
    values = values if layout == "expanded values" else values.masked_fill(~mask, nan)
    grad = torch.randn(values.shape)
    for dim in range(values.ndim):
        for logarithm in (False, True):
            soft = cpu.masked_softmax(values, mask, dim, logarithm)
            torch.testing.assert_close(soft, reference.masked_softmax(values, mask, dim, logarithm))
            for g in (grad, grad[:1].expand_as(grad), grad.transpose(0, 1).contiguous().transpose(0, 1)):
                found = cpu.masked_softmax_backward(g, soft, mask, dim, logarithm)
                expected = reference.masked_softmax_backward(g, soft, mask, dim, logarithm)
                torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    for dims in range(1, 2**values.ndim):
        dim = tuple(d for d in range(values.ndim) if dims >> d & 1)
        result, present = cpu.masked_logsumexp(values, mask, dim, True)
        expected = reference.masked_logsumexp(values, mask, dim, True)
        assert torch.equal(present, expected[1])
        torch.testing.assert_close(result, expected[0])
        weight = torch.randn(result.shape)
        found = cpu.masked_logsumexp_backward(weight, values, result, mask)
        expected = reference.masked_logsumexp_backward(weight, values, result, mask)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(3, 40_001), (40_001, 3), (2, 20_001, 5), (1, 600_001), (700, 1301)])
def test_cut_into_pieces_and_over_threads(shape):
    values, mask = torch.randn(shape).mul(5), torch.rand(shape) < 0.5
    values = values.masked_fill(~mask, nan)
    grad = torch.randn(shape)
    for dim in range(len(shape)):
        for logarithm in (False, True):
            expected = reference.masked_softmax(values.double(), mask, dim, logarithm)
            result = cpu.masked_softmax(values, mask, dim, logarithm)
            torch.testing.assert_close(result.double(), expected, rtol=4e-6, atol=1e-5 if logarithm else 0)
            found = cpu.masked_softmax_backward(grad, result, mask, dim, logarithm)
            exact = reference.masked_softmax_backward(grad.double(), result.double(), mask, dim, logarithm)
            # The sum of all gradients is as exact as its terms; that of a logarithm is multiplied by the softmax.
            total = (
                (grad.abs() * mask).sum(dim, keepdim=True) * result.exp() if logarithm else torch.zeros(())
            )
            allowed = 1e-6 + 1e-5 * exact.abs() + 1e-8 * torch.where(mask, total, 0)
            assert ((found.double() - exact).abs() <= allowed).all()
    for dim in [*((d,) for d in range(len(shape))), tuple(range(len(shape)))]:
        result, _ = cpu.masked_logsumexp(values, mask, dim, False)
        exact, _ = reference.masked_logsumexp(values.double(), mask, dim, False)
        torch.testing.assert_close(result.double(), exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("length", [40, 300, 1500], ids=["composed", "one block", "two blocks"])
@pytest.mark.parametrize("garbage", [nan, inf, 1e4])
def test_rows_of_any_length(length, dtype, garbage):
    rows = 40_000 // length
    mask = torch.rand(rows, length) < 0.6
    mask[3] = False
    values = torch.randn(rows, length).mul(4).to(dtype)
    values[5, :2], mask[5, :2] = -inf, True
    values, grad = (oracles.soiled(x, mask, garbage) for x in (values, torch.randn(rows, length).to(dtype)))
    for logarithm in (False, True):
        soft = cpu.masked_softmax(values, mask, 1, logarithm)
        tolerance = 4 * ROUNDING[dtype]
        expected = reference.masked_softmax(values, mask, 1, logarithm)
        torch.testing.assert_close(soft, expected, rtol=tolerance, atol=tolerance)
        found = masked_softmax_backward.backend("cpu")(grad, soft, mask, 1, logarithm)
        expected = reference.masked_softmax_backward(grad, soft, mask, 1, logarithm)
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=20 * tolerance)
        assert not found[~mask].count_nonzero()


SPECIAL = [
    (-inf, -inf), (inf, 1.0), (1.0, inf), (nan, 1.0), (1.0, nan), (inf, nan), (inf, inf), (-inf, 1.0), (-inf, nan),
    (-inf, -inf, inf), (3e4, -3e4), (-6e4, -6e4),
]  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("repeats", [1, 1500], ids=["short", "long"])
@pytest.mark.parametrize("row", SPECIAL, ids=str)
def test_specified_infinities_and_nan_do_what_they_do_in_torch(row, dtype, repeats):
    vector = torch.tensor(row).repeat(repeats).to(dtype)
    every = torch.ones_like(vector, dtype=torch.bool)
    for shape, dim in (((1, -1), 1), ((-1, 1), 0)):
        values, mask = vector.view(shape).expand(*(3 if n == 1 else -1 for n in shape)), every.view(shape)
        mask = mask.expand_as(values).contiguous()
        values = values.contiguous()
        for logarithm, function in ((False, torch.softmax), (True, torch.log_softmax)):
            result = cpu.masked_softmax(values, mask, dim, logarithm)
            torch.testing.assert_close(result, function(values, dim), equal_nan=True)
        leaf = values.clone().requires_grad_()
        result, _ = kernels.masked_logsumexp(leaf, mask, (dim,), False)
        torch.testing.assert_close(
            result, torch.logsumexp(values.double(), dim).to(dtype), equal_nan=True, rtol=8e-3, atol=0
        )
        wide = values.double().requires_grad_()
        (found,) = torch.autograd.grad(result.sum(), leaf)
        (expected,) = torch.autograd.grad(torch.logsumexp(wide, dim).sum(), wide)
        torch.testing.assert_close(
            found.double(), expected, equal_nan=True, rtol=8e-3, atol=torch.finfo(dtype).tiny
        )


def test_the_extremes_of_the_exponential():
    for dtype, lowest in ((torch.float32, -103.0), (torch.float64, -745.0)):
        values = torch.linspace(lowest, 0, 100_003, dtype=dtype)
        mask = torch.ones_like(values, dtype=torch.bool)
        result = cpu.masked_logsumexp_backward(
            torch.ones(1, dtype=dtype), values, torch.zeros(1, dtype=dtype), mask
        )
        expected = values.double().exp()
        unit = torch.finfo(dtype).eps
        normal = expected > torch.finfo(dtype).tiny
        assert ((result.double() - expected).abs() / expected)[normal].max() < 1.1 * unit
        subnormal = torch.finfo(dtype).tiny * unit
        assert (result.double() - expected).abs()[~normal].max() <= 1.5 * subnormal


def outcomes(problem, body):
    """Results and gradients of the three functions, by one body."""
    values, mask, dim, keepdim, seed = problem
    generator = torch.Generator().manual_seed(seed)
    found = []
    with use_kernels(body), torch.autograd.set_detect_anomaly(True, check_nan=True):
        for number in range(3):
            leaf = values.clone().requires_grad_()
            if number < 2:
                result, there = kernels.masked_softmax(leaf, mask, dim[0], number == 1), mask
            else:
                result, there = kernels.masked_logsumexp(leaf, mask, dim, keepdim)
                found.append(there)
            weight = torch.randn(result.shape, generator=generator, dtype=torch.float64).to(values.dtype)
            (grad,) = torch.autograd.grad(result, leaf, weight)
            assert not (grad != 0)[~mask].any()
            found += [result.detach(), grad]
            if number < 2:  # what arrives at unspecified entries is as unimportant as what is there
                soiled = weight.masked_fill(~mask, nan)
                again = masked_softmax_backward(soiled, result.detach(), mask, dim[0], number == 1)
                torch.testing.assert_close(again, grad)
    return found


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@settings(max_examples=examples(120))
@given(problems(dtypes=FLOATS, min_dims=1))
def test_forward_and_backward_agree_with_the_reference(problem):
    tolerance = 20 * ROUNDING[problem.values.dtype]
    for mine, theirs in zip(outcomes(problem, "cpu"), outcomes(problem, "reference"), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("body", IDS)
@pytest.mark.parametrize("dim", [(0,), (1,), (2,), (0, 2), (0, 1, 2)])
def test_first_and_second_derivatives(body, dim):
    mask = torch.rand(3, 4, 2) < 0.6
    mask[0], mask[:, 1] = False, False
    values = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)

    def logsumexp(x):
        result, present = kernels.masked_logsumexp(x**3, mask, dim, False)
        return torch.where(present, result, 0) ** 2

    def softmax(x):
        return kernels.masked_softmax(x**3, mask, dim[0]) ** 2

    def log_softmax(x):
        return torch.where(mask, kernels.masked_softmax(x**3, mask, dim[0], True), 0) ** 2

    with use_kernels(body):
        for function in (logsumexp, softmax, log_softmax) if len(dim) == 1 else (logsumexp,):
            assert torch.autograd.gradcheck(function, values)
            assert torch.autograd.gradgradcheck(function, values)


def test_results_do_not_depend_on_the_number_of_threads():
    values, mask = torch.randn(1000, 1000), torch.rand(1000, 1000) < 0.5
    threads, results = torch.get_num_threads(), []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            found = [kernels.masked_logsumexp(values, mask, d, False)[0] for d in ((0,), (1,), (0, 1))]
            for d in (0, 1):
                soft = kernels.masked_softmax(values, mask, d)
                found += [soft, masked_softmax_backward(values, soft, mask, d, False)]
            found.append(kernels.masked_softmax(values.view(-1), mask.view(-1), 0, True))
            results.append(found)
    finally:
        torch.set_num_threads(threads)
    for result in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(result, results[0], strict=True))


def test_complex_numbers_and_mistakes():
    values, mask = torch.randn(4, 5, dtype=torch.complex64), torch.rand(4, 5) < 0.7
    result, _ = kernels.masked_logsumexp(values, mask, (0, 1), False)
    torch.testing.assert_close(result, torch.logsumexp(values[mask], 0))
    with pytest.raises(TypeError, match=r"mask must be a Boolean tensor"):
        kernels.masked_softmax(torch.ones(3), torch.ones(3), 0)
    with pytest.raises(ValueError, match=r"mask must have the shape of values, \(3, 2\); got \(2,\)"):
        kernels.masked_logsumexp(torch.ones(3, 2), torch.ones(2, dtype=torch.bool), (0,), False)
