"""masked_norm: the reference against loops, the compiled body against the reference."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from maskgrad import kernels
from maskgrad.kernels import use_kernels
from maskgrad.kernels.norms import cpu as norms_cpu
from tests.effort import examples
from tests.unit.kernels import oracles
from tests.unit.kernels.bodies import cpu, reference
from tests.unit.kernels.layouts import SHAPES_AND_DIMS, layouts

BODIES = [reference, cpu]
IDS = ["reference", "cpu"]
ORDERS = [0.0, 1.0, 2.0, math.inf]
ROUNDING = {torch.float64: 1e-13, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@pytest.fixture(autouse=True)
def _compiled_bodies_for_small_tensors_too():
    with use_kernels("cpu"):
        yield


def norm(group, ord):
    """Of a list of numbers; 0 if it is empty."""
    sizes = [abs(x) for x in group]
    if ord == math.inf:
        return max(sizes, default=0.0)
    if ord == 0:
        return float(sum(x != 0 for x in sizes))
    return math.fsum(x**ord for x in sizes) ** (1 / ord)


def refused(values, dim, ord):
    """Whether torch has no norm of no numbers: the dimension is empty, not the group masked."""
    return values.ndim > 0 and ord in (math.inf, -1.0) and any(values.shape[d] == 0 for d in dim)


def check(body, values, mask, dim, keepdim, ord):
    if refused(values, dim, ord):
        with pytest.raises(RuntimeError, match="dimension is empty"):
            body.masked_norm(values, mask, dim, keepdim, ord)
        return
    groups, shape = oracles.specified(values, mask, dim, keepdim)
    result, present = body.masked_norm(values, mask, dim, keepdim, ord)
    expected = torch.tensor([norm(g, ord) for g in groups], dtype=torch.float64).reshape(shape)
    assert result.shape == present.shape == expected.shape
    assert present.tolist() == torch.tensor([bool(g) for g in groups]).reshape(shape).tolist()
    assert (result.dtype, present.dtype) == (values.dtype, torch.bool)
    tolerance = ROUNDING[values.dtype]
    torch.testing.assert_close(result.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("body", BODIES, ids=IDS)
@pytest.mark.parametrize("ord", [*ORDERS, 3.0, -1.0, 0.5])
@pytest.mark.parametrize(("shape", "dim"), SHAPES_AND_DIMS)
def test_any_dimensions(body, ord, shape, dim):
    values, mask = torch.randn(shape), torch.rand(shape) < 0.6
    values = torch.where(values.abs() < 0.2, 0.0 if ord >= 0 else 1.0, values)
    if ord < 0:
        groups, _ = oracles.specified(values, mask, dim, False)
        if not all(groups):
            return  # an empty group has no reciprocal in the oracle
    for keepdim in (False, True):
        check(body, values, mask, dim, keepdim, ord)


@pytest.mark.parametrize("body", BODIES, ids=IDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("garbage", oracles.GARBAGE)
def test_garbage_under_the_mask_is_never_read(body, dtype, garbage):
    mask = torch.rand(131, 53) < 0.5
    mask[3], mask[:, 5], mask[:90, 7] = False, False, False
    values = oracles.soiled(torch.randn(131, 53).to(dtype), mask, garbage)
    for dim in ((0,), (1,), (0, 1)):
        for ord in ORDERS:
            check(body, values, mask, dim, False, ord)


def both(values, mask, dim, ord, grad=None, keepdim=False):
    """Norm, presence and gradient by either body."""
    results = []
    for body in ("reference", "cpu"):
        leaf = values.detach().requires_grad_()
        with use_kernels(body):
            result, present = kernels.masked_norm(leaf, mask, dim, keepdim, ord)
            assert result.requires_grad
            if ord == 0:  # no gradient, as in torch
                assert torch.autograd.grad(result.sum(), leaf, allow_unused=True) == (None,)
                results.append((result.detach(), present))
                continue
            weight = torch.ones_like(result).cumsum(0).cos() if grad is None and result.ndim else grad
            (found,) = torch.autograd.grad(
                result, leaf, torch.ones_like(result) if weight is None else weight
            )
        assert not (found != 0)[~mask].any()
        results.append((result.detach(), present, found))
    return results


@pytest.mark.parametrize("layout", list(layouts()))
@pytest.mark.parametrize("ord", ORDERS)
def test_any_strides(layout, ord):
    values, mask = layouts()[layout]
    values = values if layout == "expanded values" else values.masked_fill(~mask, math.nan)
    for dims in range(1, 2**values.ndim):
        dim = tuple(d for d in range(values.ndim) if dims >> d & 1)
        for mine, theirs in zip(*both(values, mask, dim, ord), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=3e-6, atol=1e-6)


@pytest.mark.parametrize("shape", [(3, 40_000), (40_000, 3), (2, 20_000, 5), (1, 700_001), (257, 2053)])
@pytest.mark.parametrize("ord", ORDERS)
def test_sums_cut_into_pieces_and_over_threads(shape, ord):
    values, mask = torch.randn(shape), torch.rand(shape) < 0.5
    values = values.masked_fill(~mask, math.nan)
    for dim in [(d,) for d in range(len(shape))] + [tuple(range(len(shape)))]:
        for mine, theirs in zip(*both(values, mask, dim, ord), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("ord", ORDERS)
def test_other_dtypes(dtype, ord):
    values, mask = (torch.randn(130, 120) * 3).round().to(dtype), torch.rand(130, 120) < 0.5
    for dim in ((0,), (1,)):
        for mine, theirs in zip(*both(values, mask, dim, ord), strict=True):
            assert mine.dtype == theirs.dtype
            torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("ord", ORDERS)
@pytest.mark.parametrize("dim", [0, 1])
def test_specified_inf_nan_and_zeros_give_what_torch_gives(ord, dim):
    values = torch.randn(150, 150)
    values[3, 4], values[5, 6], values[100, 80] = math.nan, math.inf, -math.inf
    values[7], values[:, 8], values[9, 10], values[9, 11] = 0, 0, 5, -5
    mask = torch.ones(150, 150, dtype=torch.bool)
    theirs, ours = values.clone().requires_grad_(), values.clone().requires_grad_()
    expected = torch.linalg.vector_norm(theirs, ord, dim)
    result, _ = kernels.masked_norm(ours, mask, (dim,), False, ord)
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6, equal_nan=True)
    if ord:
        expected.sum().backward()
        result.sum().backward()
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-6, equal_nan=True)


@st.composite
def problems(draw):
    shape = tuple(draw(st.lists(st.integers(0, 9), min_size=1, max_size=4)))
    dim = tuple(d for d in range(len(shape)) if draw(st.booleans()))
    expanded = tuple(1 if draw(st.booleans()) else n for n in shape)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    order = draw(st.permutations(range(len(shape))))
    values = torch.randint(-3, 4, [shape[i] for i in order], generator=generator).double()
    values = values.permute([order.index(i) for i in range(len(shape))])
    mask = (torch.rand(expanded, generator=generator) < draw(st.sampled_from([0.0, 0.2, 0.5, 1.0]))).expand(
        shape
    )
    garbage, ord = draw(st.sampled_from(oracles.GARBAGE)), draw(st.sampled_from([*ORDERS, 3.0]))
    assume(not refused(values, dim, ord))
    return values.masked_fill(~mask, garbage), mask, dim, draw(st.booleans()), ord


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@settings(max_examples=examples(150))
@given(problems())
def test_forward_and_backward_agree_with_the_reference(problem):
    values, mask, dim, keepdim, ord = problem
    with torch.autograd.set_detect_anomaly(True, check_nan=True):
        results = both(values, mask, dim, ord, keepdim=keepdim)
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("body", ["reference", "cpu"])
@pytest.mark.parametrize("dim", [(0,), (1,), (0, 1), (0, 2), (1, 2), ()])
@pytest.mark.parametrize("ord", [1.0, 2.0, math.inf, 3.0])
def test_first_and_second_derivatives(body, dim, ord):
    mask = torch.rand(3, 4, 2) < 0.6
    mask[0], mask[:, 1], mask[:, :, 0] = False, False, mask[:, :, 1]
    values = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)

    def powers(x):
        return kernels.masked_norm(x**3, mask, dim, False, ord)[0] ** 2

    with use_kernels(body):
        assert torch.autograd.gradcheck(powers, values)
        assert torch.autograd.gradgradcheck(powers, values)


def test_several_gradients_at_once():
    values, mask = torch.randn(40, 30, requires_grad=True), torch.rand(40, 30) < 0.5
    for ord in (1.0, 2.0, math.inf):
        result, _ = kernels.masked_norm(values, mask, (1,), False, ord)
        grads = torch.randn(3, 40)
        (stacked,) = torch.autograd.grad(result, values, grads, is_grads_batched=True, retain_graph=True)
        for grad, expected in zip(grads, stacked, strict=True):
            torch.testing.assert_close(
                torch.autograd.grad(result, values, grad, retain_graph=True)[0], expected
            )


def test_results_do_not_depend_on_the_number_of_threads():
    values, mask = torch.randn(1000, 1000), torch.rand(1000, 1000) < 0.5
    leaf = values.clone().requires_grad_()
    threads, results = torch.get_num_threads(), []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            found = [
                kernels.masked_norm(leaf, mask, d, False, p)[0]
                for d in ((0,), (1,), (0, 1))
                for p in ORDERS[1:]
            ]
            grads = [torch.autograd.grad(x.sum(), leaf)[0] for x in found]
            results.append([*found, *grads])
    finally:
        torch.set_num_threads(threads)
    for result in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(result, results[0], strict=True))


def test_mistakes_in_the_mask_are_named():
    with pytest.raises(
        ValueError, match=r"mask must have the shape of values, \(3, 2\); got \(2,\); expand it"
    ):
        kernels.masked_norm(torch.ones(3, 2), torch.ones(2, dtype=torch.bool), (0,), False)


def test_loops_that_are_made_for_two_formulas_have_two_names_on_disk():
    """Under one name, one would load what was compiled for the other."""
    loops = [loop for pair in (*norms_cpu._TERMS.values(), norms_cpu._KEYS) for loop in pair]
    loops += [loop for pair in norms_cpu._SEGMENT_TERMS.values() for loop in pair]
    loops += [loop for pair in (*norms_cpu._SCALED.values(), norms_cpu._SHARED) for loop in pair]
    loops += [norms_cpu._SIGNED, norms_cpu._SIGNED_HITS, *norms_cpu._HITS]
    names = {(loop.py_func.__module__, loop.py_func.__qualname__) for loop in loops}
    assert len(names) == len(loops) == 26
