"""masked_variance: the reference against loops, the compiled body against the reference."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskgrad as mg
from maskgrad import kernels
from maskgrad.kernels import use_kernels
from tests.effort import examples
from tests.unit.kernels import oracles
from tests.unit.kernels.bodies import cpu, reference
from tests.unit.kernels.layouts import SHAPES_AND_DIMS, layouts

BODIES = [reference, cpu]
IDS = ["reference", "cpu"]
ROUNDING = {torch.float64: 1e-12, torch.float32: 3e-6, torch.float16: 3e-6, torch.bfloat16: 3e-6}


@pytest.fixture(autouse=True)
def _compiled_bodies_for_small_tensors_too():
    with use_kernels("cpu"):
        yield


def moments(group, correction):
    """Variance and mean of a list of numbers, as torch gives them; of too few the sum of squares, undivided."""
    if not group:
        return 0.0, 0.0
    mean = math.fsum(group) / len(group)
    squares = math.fsum((x - mean) ** 2 for x in group)
    return squares / (len(group) - correction if len(group) > correction else 1), mean


def check(body, values, mask, dim, keepdim, correction=1.0):
    groups, shape = oracles.specified(values, mask, dim, keepdim)
    pairs = [moments(group, correction) for group in groups]
    variance, mean, count = body.masked_variance(values, mask, dim, keepdim, correction)
    assert variance.shape == mean.shape == count.shape == torch.Size(shape)
    assert count.tolist() == torch.tensor([len(g) for g in groups], dtype=torch.int64).reshape(shape).tolist()
    wide = torch.float64 if values.dtype == torch.float64 else torch.float32
    assert variance.dtype == mean.dtype == wide
    tolerance = ROUNDING[values.dtype]
    for i, result in enumerate((variance, mean)):
        expected = torch.tensor([pair[i] for pair in pairs], dtype=torch.float64).reshape(shape)
        torch.testing.assert_close(
            result.double(), expected, rtol=tolerance, atol=tolerance * 10, equal_nan=True
        )


@pytest.mark.parametrize("body", BODIES, ids=IDS)
@pytest.mark.parametrize("correction", [1.0, 0.0, 2.5])
@pytest.mark.parametrize(("shape", "dim"), SHAPES_AND_DIMS)
def test_any_dimensions(body, correction, shape, dim):
    values, mask = torch.randn(shape), torch.rand(shape) < 0.6
    for keepdim in (False, True):
        check(body, values, mask, dim, keepdim, correction)


@pytest.mark.parametrize("body", BODIES, ids=IDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("garbage", oracles.GARBAGE)
def test_garbage_under_the_mask_is_never_read(body, dtype, garbage):
    mask = torch.rand(131, 53) < 0.5
    mask[3], mask[:, 5], mask[:90, 7] = False, False, False
    values = oracles.soiled(torch.randn(131, 53).to(dtype), mask, garbage)
    for dim in ((0,), (1,), (0, 1)):
        check(body, values, mask, dim, False)


@pytest.mark.parametrize("layout", list(layouts()))
def test_any_strides(layout):
    values, mask = layouts()[layout]
    values = values if layout == "expanded values" else values.masked_fill(~mask, math.nan)
    for dims in range(1, 2**values.ndim):
        dim = tuple(d for d in range(values.ndim) if dims >> d & 1)
        expected = reference.masked_variance(values.double(), mask, dim, False, 0.0)
        result = cpu.masked_variance(values, mask, dim, False, 0.0)
        for mine, theirs in zip(result, expected, strict=True):
            torch.testing.assert_close(mine.double(), theirs.double(), rtol=3e-6, atol=1e-6)
            assert mine.is_contiguous()
        grad, gradients = torch.randn(expected[0].shape), []
        for body in ("reference", "cpu"):
            leaf = values.detach().requires_grad_()
            with use_kernels(body):
                kernels.masked_variance(leaf, mask, dim, False)[0].backward(grad)
            gradients.append(leaf.grad)
            assert not (leaf.grad != 0)[~mask].any()
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("shape", [(3, 40_000), (40_000, 3), (2, 20_000, 5), (1, 1_300_001), (257, 2053)])
def test_sums_cut_into_pieces_and_over_threads(shape):
    values, mask = torch.randn(shape) + 100, torch.rand(shape) < 0.5
    values = values.masked_fill(~mask, math.nan)
    for dim in [(d,) for d in range(len(shape))] + [tuple(range(len(shape)))]:
        expected = reference.masked_variance(values.double(), mask, dim, False, 1.0)
        result = cpu.masked_variance(values, mask, dim, False)
        for mine, theirs in zip(result, expected, strict=True):
            torch.testing.assert_close(mine.double(), theirs.double(), rtol=3e-6, atol=1e-5, equal_nan=True)


def difficult():
    """Name -> float32 values of shape (300, 1500) that a careless algorithm gets wrong."""
    values = torch.randn(300, 1500)
    jump = torch.randn(300, 1500) + 1e6
    jump[:70], jump[:, :70] = 0, 0
    first = torch.randn(300, 1500)
    first[0], first[:, 0] = 1e8, 1e8
    return {
        "mean 1e6": values + 1e6,
        "mean -3e7": values * 10 - 3e7,
        "constant": torch.full((300, 1500), 0.1),
        "sorted": torch.arange(450_000).float().view(300, 1500),
        "a jump": jump,
        "an outlier at the start": first,
        "squares beyond float32": values * 1e19,
        "squares below float32": values * 1e-18,
        "sums beyond float32": values.sign() * 3e38,
        "tiny differences": torch.where(values > 0, 1.0, 1.0 + 2**-23),
    }


@pytest.mark.parametrize("name", list(difficult()))
@pytest.mark.parametrize("dim", [(0,), (1,), (0, 1)])
def test_no_digits_are_lost(name, dim):
    values, mask = difficult()[name], torch.rand(300, 1500) < 0.5
    mask[:9, :9], mask[200:, 3] = False, False
    expected, mean, count = reference.masked_variance(values.double(), mask, dim, False, 1.0)
    variance, center, number = cpu.masked_variance(values.masked_fill(~mask, math.nan), mask, dim, False)
    assert torch.equal(number, count)
    assert ((center - mean).abs() <= 1e-6 * (mean.abs() + expected.nan_to_num().sqrt())).all()
    torch.testing.assert_close(variance, expected.float(), rtol=3e-6, atol=0)


def test_at_least_as_exact_as_torch():
    values = torch.randn(64, 5000) + 1e6
    mask = torch.ones_like(values, dtype=torch.bool)
    for dim in (0, 1):
        exact = values.double().var(dim)
        ours = (kernels.masked_variance(values, mask, (dim,), False)[0] - exact).abs().max()
        assert ours <= (values.var(dim) - exact).abs().max() * 1.01 + 1e-6


def test_float64_near_its_ends():
    mask = torch.rand(200, 200) < 0.5
    for scale in (1e150, 1e-150):
        values = torch.randn(200, 200, dtype=torch.float64) * scale
        for dim in ((0,), (1,), (0, 1)):
            expected = reference.masked_variance(values / scale, mask, dim, False, 1.0)[0] * scale * scale
            result = cpu.masked_variance(values, mask, dim, False)[0]
            torch.testing.assert_close(result, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("body", ["reference", "cpu"])
@pytest.mark.parametrize("dim", [0, 1])
def test_specified_inf_and_nan_give_what_torch_gives(body, dim):
    values = torch.randn(150, 150)
    values[3, 4], values[5, 6], values[100, 80] = math.nan, math.inf, -math.inf
    mask = torch.ones(150, 150, dtype=torch.bool)
    theirs, ours = values.clone().requires_grad_(), values.clone().requires_grad_()
    expected = theirs.var(dim)
    expected.sum().backward()
    with use_kernels(body):
        result, mean, _ = kernels.masked_variance(ours, mask, (dim,), False)
        result.sum().backward()
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6, equal_nan=True)
    torch.testing.assert_close(mean, values.mean(dim), rtol=1e-5, atol=1e-6, equal_nan=True)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-6, equal_nan=True)


@st.composite
def problems(draw):
    shape = tuple(draw(st.lists(st.integers(0, 9), min_size=1, max_size=4)))
    dim = tuple(d for d in range(len(shape)) if draw(st.booleans()))
    expanded = tuple(1 if draw(st.booleans()) else n for n in shape)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    order = draw(st.permutations(range(len(shape))))
    values = torch.randn([shape[i] for i in order], generator=generator, dtype=torch.float64)
    values = values.permute([order.index(i) for i in range(len(shape))]) + draw(st.sampled_from([0, 1e3]))
    mask = (torch.rand(expanded, generator=generator) < draw(st.sampled_from([0.0, 0.2, 0.5, 1.0]))).expand(
        shape
    )
    garbage, correction = draw(st.sampled_from(oracles.GARBAGE)), draw(st.sampled_from([0.0, 1.0, 0.3]))
    return values, mask, dim, draw(st.booleans()), garbage, correction


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@settings(max_examples=examples(150))
@given(problems())
def test_forward_and_backward_agree_with_the_reference(problem):
    values, mask, dim, keepdim, garbage, correction = problem
    results = []
    for body in ("reference", "cpu"):
        leaf = values.masked_fill(~mask, garbage).requires_grad_()
        with use_kernels(body):
            result, mean, count = kernels.masked_variance(leaf, mask, dim, keepdim, correction)
            weight = torch.arange(result.numel(), dtype=torch.float64).reshape(result.shape).cos()
            weight = weight.masked_fill(count == 0, 0.5)
            (grad,) = torch.autograd.grad(result, leaf, weight, create_graph=True)
        assert not (grad != 0)[~mask].any()
        results.append((result.detach(), mean, count, grad.detach()))
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("body", ["reference", "cpu"])
@pytest.mark.parametrize("dim", [(0,), (1,), (0, 1), (0, 2), (1, 2), ()])
@pytest.mark.parametrize("correction", [0.0, 0.5])
def test_first_and_second_derivatives(body, dim, correction):
    mask = torch.rand(3, 4, 2) < 0.6
    mask[0], mask[:, 1], mask[:, :, 0] = False, False, mask[:, :, 1]
    values = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)

    def powers(x):
        variance, _, count = kernels.masked_variance(x**3, mask, dim, False, correction)
        return torch.where(count > 0, variance, 0) ** 2

    with use_kernels(body):
        assert torch.autograd.gradcheck(powers, values)
        assert torch.autograd.gradgradcheck(powers, values)


def test_several_gradients_at_once():
    values, mask = torch.randn(40, 30, requires_grad=True), torch.rand(40, 30) < 0.5
    variance, _, _ = kernels.masked_variance(values, mask, (1,), False, 0.0)
    grads = torch.randn(3, 40)
    (stacked,) = torch.autograd.grad(variance, values, grads, is_grads_batched=True, retain_graph=True)
    for grad, expected in zip(grads, stacked, strict=True):
        torch.testing.assert_close(
            torch.autograd.grad(variance, values, grad, retain_graph=True)[0], expected
        )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_get_gradients_of_their_own_type(dtype):
    values, mask = torch.randn(130, 120).to(dtype), torch.rand(130, 120) < 0.5
    found = []
    for body in ("reference", "cpu"):
        leaf = values.clone().requires_grad_()
        with use_kernels(body):
            kernels.masked_variance(leaf, mask, (1,), False)[0].sum().backward()
        assert leaf.grad.dtype == dtype
        found.append(leaf.grad)
    torch.testing.assert_close(*found)


def test_results_do_not_depend_on_the_number_of_threads():
    values, mask = torch.randn(1000, 1000), torch.rand(1000, 1000) < 0.5
    leaf = values.clone().requires_grad_()
    threads, results = torch.get_num_threads(), []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            found = [kernels.masked_variance(leaf, mask, d, False)[0] for d in ((0,), (1,), (0, 1))]
            grads = [torch.autograd.grad(x.sum(), leaf)[0] for x in found]
            results.append([*found, *grads])
    finally:
        torch.set_num_threads(threads)
    for result in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(result, results[0], strict=True))


def test_mistakes_in_the_mask_are_named():
    with pytest.raises(
        TypeError, match=r"mask must be a Boolean tensor \(True = specified\); got torch.float32"
    ):
        kernels.masked_variance(torch.ones(3), torch.ones(3), (0,), False)


@pytest.mark.every
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("forced", ["reference", "cpu"])
@pytest.mark.parametrize("layout", [torch.strided, torch.sparse_coo, torch.sparse_csr])
def test_equal_entries_have_no_deviation(dtype, forced, layout):
    """As in PyTorch: rounding of their mean made noise of it, and a gradient of 0.18."""
    with use_kernels(forced):
        for width in (3, 100, 1000):
            mask = torch.rand(3, width) < 0.8
            leaf = torch.full((3, width), 0.1, dtype=dtype, requires_grad=True)
            x = mg.masked(torch.where(mask, leaf, float("nan")), mask)
            found = (x if layout == torch.strided else x.to_sparse(layout=layout)).std(1)
            found = found if found.layout == torch.strided else found.to_dense()
            assert not found.filled(0).count_nonzero()
            assert not torch.autograd.grad(found.filled(0).sum(), leaf)[0].count_nonzero()
