"""masked_prod: both bodies against products of Python numbers, and the gradient wherever factors are zero."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings

from maskgrad import kernels
from maskgrad.kernels import use_kernels
from tests.effort import examples
from tests.unit.kernels import oracles
from tests.unit.kernels.bodies import cpu, reference
from tests.unit.kernels.layouts import SHAPES_AND_DIMS, layouts
from tests.unit.kernels.problems import problems

BODIES = [reference, cpu]
IDS = ["reference", "cpu"]
ROUNDING = {torch.float64: 1e-13, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
FLOATS = tuple(ROUNDING)
INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
inf, nan = math.inf, math.nan


@pytest.fixture(autouse=True)
def _compiled_bodies_for_small_tensors_too():
    with use_kernels("cpu"):
        yield


@pytest.mark.parametrize("body", BODIES, ids=IDS)
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
@pytest.mark.parametrize(("shape", "dim"), SHAPES_AND_DIMS)
def test_any_dimensions_and_dtype(body, dtype, shape, dim):
    mask = torch.rand(shape) < 0.6
    values = torch.randint(0, 2 if dtype == torch.bool else 4, shape).to(dtype)
    values = oracles.soiled(values, mask, nan)
    for keepdim in (False, True):
        groups, expected_shape = oracles.specified(values, mask, dim, keepdim)
        product, rest, zeros, count = body.masked_prod(values, mask, dim, keepdim)
        assert all(x.shape == torch.Size(expected_shape) for x in (product, rest, zeros, count))
        assert product.dtype == (dtype if dtype.is_floating_point else torch.int64)
        assert count.flatten().tolist() == [len(g) for g in groups]
        assert zeros.flatten().tolist() == [sum(x == 0 for x in g) for g in groups]
        for result, factors in ((product, groups), (rest, [[x for x in g if x != 0] for g in groups])):
            expected = torch.tensor([float(math.prod(g)) for g in factors]).reshape(expected_shape)
            torch.testing.assert_close(result.float(), expected, rtol=ROUNDING.get(dtype, 0), atol=0)


@pytest.mark.parametrize("layout", list(layouts()))
def test_any_strides(layout):
    values, mask = layouts()[layout]
    signs = values.sign() if layout != "sliced" else values.sign()[:, ::7]
    mask = mask if layout != "sliced" else mask[:, ::7]
    signs = signs if layout == "expanded values" else signs.masked_fill(~mask, nan)
    for dims in range(1, 2**signs.ndim):
        dim = tuple(d for d in range(signs.ndim) if dims >> d & 1)
        mine, theirs = (body.masked_prod(signs, mask, dim, True) for body in (cpu, reference))
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
        grad = torch.randn(mine[0].shape)
        back = [body.masked_prod_backward(grad, signs, *mine[1:3], mask) for body in (cpu, reference)]
        assert torch.equal(*back)


@pytest.mark.parametrize("shape", [(3, 40_001), (40_001, 3), (2, 20_001, 5), (1, 600_001), (700, 1301)])
def test_cut_into_pieces_and_over_threads(shape):
    values, mask = torch.randn(shape).sign(), torch.rand(shape) < 0.5
    values.view(-1)[::50_021] = 0
    values = values.masked_fill(~mask, nan)
    for dim in [*((d,) for d in range(len(shape))), tuple(range(len(shape)))]:
        mine, theirs = (body.masked_prod(values, mask, dim, False) for body in (cpu, reference))
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_large_integers_are_exact():
    values = torch.tensor([3, 7, 2**40 + 1, 9]).repeat(500)
    mask = torch.zeros(2000, dtype=torch.bool)
    mask[[0, 1001, 1002]] = True
    assert cpu.masked_prod(values, mask, (0,), False)[0].item() == 21 * (2**40 + 1)


@pytest.mark.parametrize(
    "factors", [(0.0, inf), (inf, 2.0), (nan, 0.0), (nan, 2.0), (-inf, 3.0), (0.0, 1e30, 1e30)]
)
def test_specified_infinities_and_nan_surface(factors):
    values = torch.tensor(factors).repeat(1, 1)
    expected = values.double().prod(1).float()
    mask = torch.ones_like(values, dtype=torch.bool)
    torch.testing.assert_close(cpu.masked_prod(values, mask, (1,), False)[0], expected, equal_nan=True)
    columns = cpu.masked_prod(values.t().expand(-1, 4).contiguous(), mask.t().expand(-1, 4), (0,), False)[0]
    torch.testing.assert_close(columns, expected.expand(4), equal_nan=True)


@pytest.mark.parametrize("body", IDS)
@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ((2.0, 3.0, nan), (3.0, 2.0, 0.0)),
        ((0.0, 3.0, nan), (3.0, 0.0, 0.0)),
        ((0.0, 0.0, nan), (0.0, 0.0, 0.0)),
        ((inf, 3.0, nan), (3.0, inf, 0.0)),
        ((0.0, inf, nan), (inf, 0.0, 0.0)),
        ((1e30, 1e30, nan), (1e30, 1e30, 0.0)),
    ],
)
def test_the_gradient_is_the_product_of_the_others(body, row, expected):
    """Also where the product overflows: PyTorch's own division gives inf there, and it decides what is right."""
    mask = torch.tensor([True, True, False])
    values = torch.tensor(row, requires_grad=True)
    with use_kernels(body):
        kernels.product(values, mask, (0,), False)[0].backward()
    plain = torch.tensor(row[:2], requires_grad=True)
    plain.prod(0).backward()
    assert values.grad[2] == 0
    torch.testing.assert_close(values.grad[:2], plain.grad, equal_nan=True)
    if math.isfinite(math.prod(row[:2])) and math.prod(row[:2]) < 1e38:
        assert values.grad.tolist() == list(expected)


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@settings(max_examples=examples(120))
@given(problems(dtypes=FLOATS, special=(0.0, 1.0)))
def test_forward_and_backward_agree_with_the_reference(problem):
    values, mask, dim, keepdim, _ = problem
    values = torch.where(mask & (values.abs() < 0.1), torch.zeros_like(values), values)  # else they underflow
    results = []
    for body in ("reference", "cpu"):
        leaf = values.clone().requires_grad_()
        with use_kernels(body):
            product, present = kernels.product(leaf, mask, dim, keepdim)
            weight = torch.arange(product.numel()).reshape(product.shape).cos().to(values.dtype)
            (grad,) = torch.autograd.grad(product, leaf, weight)
        assert not (grad != 0)[~mask].any()
        results.append((product.detach(), present, grad))
    tolerance = 20 * ROUNDING[values.dtype]
    largest = torch.finfo(values.dtype).max
    for mine, theirs in zip(*results, strict=True):
        same = (
            (mine == theirs) | (theirs.abs() > largest / 1e3)
            if theirs.is_floating_point()
            else mine == theirs
        )
        torch.testing.assert_close(mine[~same], theirs[~same], rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("body", IDS)
@pytest.mark.parametrize("dim", [(0,), (1,), (2,), (0, 2), (0, 1, 2), ()])
@pytest.mark.parametrize("zeros", [0, 1, 6])
def test_first_and_second_derivatives(body, dim, zeros):
    mask = torch.rand(3, 4, 2) < 0.6
    mask[0], mask[:, 1] = False, False
    values = torch.randn(3, 4, 2, dtype=torch.float64) + 2
    values.view(-1)[torch.randperm(24)[:zeros]] = 0
    values.requires_grad_()

    def powers(x):
        return kernels.product(x + x**2, mask, dim, False)[0] ** 2

    with use_kernels(body):
        assert torch.autograd.gradcheck(powers, values, atol=1e-4, rtol=1e-3)
        assert torch.autograd.gradgradcheck(powers, values, atol=1e-3, rtol=1e-2)


def test_results_do_not_depend_on_the_number_of_threads():
    values, mask = torch.randn(1000, 1000).mul(0.01).add(1), torch.rand(1000, 1000) < 0.5
    threads, results = torch.get_num_threads(), []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            results.append([cpu.masked_prod(values, mask, d, False)[0] for d in ((0,), (1,), (0, 1))])
    finally:
        torch.set_num_threads(threads)
    for result in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(result, results[0], strict=True))


def test_complex_numbers_and_mistakes():
    values, mask = torch.randn(4, 5, dtype=torch.complex64), torch.rand(4, 5) < 0.7
    torch.testing.assert_close(kernels.product(values, mask, (0, 1), False)[0], values[mask].prod())
    with pytest.raises(TypeError, match=r"mask must be a Boolean tensor"):
        kernels.product(torch.ones(3), torch.ones(3), (0,), False)
