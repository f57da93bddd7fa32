"""masked_layer_norm: the reference against torch on what is left, the compiled body against the reference."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from maskgrad import kernels
from maskgrad.kernels import use_kernels
from tests.effort import examples
from tests.unit.kernels import oracles
from tests.unit.kernels.bodies import cpu, reference
from tests.unit.kernels.layouts import layouts

BODIES = ["reference", "cpu"]


@pytest.fixture(autouse=True)
def _compiled_bodies_for_small_tensors_too():
    with use_kernels("cpu"):
        yield


@pytest.mark.parametrize("body", [reference, cpu], ids=BODIES)
@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("garbage", oracles.GARBAGE)
def test_each_row_is_torch_s_on_what_is_left_of_it(body, centered, garbage):
    values, mask = torch.randn(40, 67, dtype=torch.float64), torch.rand(40, 67) < 0.5
    mask[3] = False
    weight, bias = torch.randn(2, 67, dtype=torch.float64)
    out, _, _, count = body.masked_layer_norm(
        oracles.soiled(values, mask, garbage), mask, 1, weight, bias, 1e-5, centered
    )
    assert count.tolist() == [[int(row.sum())] for row in mask]
    assert not (out != 0)[~mask].any()
    for row in range(40):
        left = values[row][mask[row]]
        if not len(left):
            continue
        expected = (F.layer_norm if centered else F.rms_norm)(left, left.shape, eps=1e-5)
        expected = expected * weight[mask[row]] + bias[mask[row]]
        torch.testing.assert_close(out[row][mask[row]], expected, rtol=1e-12, atol=1e-12)


def both(values, mask, dims, weight=None, bias=None, eps=1e-5, centered=True):
    """Result, statistics and gradients by either body."""
    results = []
    for body in BODIES:
        leaves = [None if x is None else x.detach().requires_grad_() for x in (values, weight, bias)]
        with use_kernels(body):
            found = kernels.masked_layer_norm(leaves[0], mask, dims, *leaves[1:], eps, centered)
            grad = torch.arange(values.numel()).reshape(values.shape).cos().to(values.dtype)
            given = [leaf for leaf in leaves if leaf is not None]
            gradients = torch.autograd.grad(found[0], given, grad.masked_fill(~mask, math.nan))
        assert found[0].dtype == values.dtype
        assert not (found[0] != 0)[~mask].any()
        assert not (gradients[0] != 0)[~mask].any()
        results.append([*(x.detach() for x in found), *gradients])
    return zip(*results, strict=True)


@pytest.mark.parametrize("layout", list(layouts()))
@pytest.mark.parametrize("dims", [1, 2])
def test_any_strides(layout, dims):
    values, mask = layouts()[layout]
    values = values if layout == "expanded values" else values.masked_fill(~mask, math.nan)
    weight, bias = torch.randn(2, *values.shape[-dims:])
    for mine, theirs in both(values, mask, dims, weight, bias):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("shape", [(700, 1100), (3, 40_001), (5000, 7), (1, 5), (4, 1), (0, 3), (3, 0)])
def test_all_dtypes_and_sizes(dtype, centered, shape):
    values, mask = (torch.randn(shape) + 3).to(dtype), torch.rand(shape) < 0.5
    mask[:1] = False
    values = values.masked_fill(~mask, math.inf)
    weight, bias = torch.randn(2, shape[1]).to(dtype)
    tolerance = {torch.float16: 1e-2, torch.bfloat16: 8e-2, torch.float32: 1e-3}.get(dtype, 1e-10)
    for mine, theirs in both(values, mask, 1, weight, bias, 1e-5, centered):
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)


def test_an_infinite_scale_reaches_only_what_is_specified():
    """A row of equal entries, and no eps: torch's result there is NaN, and so is the gradient of the weights it met."""
    values, mask = torch.randn(30, 20), torch.rand(30, 20) < 0.7
    values[4], mask[4, :10] = 1.0, False
    mask[4, 10:] = True
    for mine, theirs in both(values, mask, 1, *torch.randn(2, 20), 0.0):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4, equal_nan=True)
        assert not mine.isnan().all()


def test_a_large_mean_costs_no_more_digits_than_in_torch():
    values, mask = torch.randn(50, 3000) + 3e4, torch.ones(50, 3000, dtype=torch.bool)
    exact = F.layer_norm(values.double(), (3000,))
    ours, _, _, _ = kernels.masked_layer_norm(values, mask, 1)
    assert (ours - exact).abs().max() <= (F.layer_norm(values, (3000,)) - exact).abs().max() * 1.1


@st.composite
def problems(draw):
    shape = tuple(draw(st.lists(st.integers(0, 7), min_size=1, max_size=4)))
    dims = draw(st.integers(1, len(shape)))
    expanded = tuple(1 if draw(st.booleans()) else n for n in shape)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    mask = (torch.rand(expanded, generator=generator) < draw(st.sampled_from([0.0, 0.5, 1.0]))).expand(shape)
    parameters = torch.randn(2, *shape[-dims:], generator=generator, dtype=torch.float64)
    weight, bias = (x if draw(st.booleans()) else None for x in parameters)
    garbage = draw(st.sampled_from(oracles.GARBAGE))
    return values.masked_fill(~mask, garbage), mask, dims, weight, bias, 1e-3, draw(st.booleans())


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@settings(max_examples=examples(100))
@given(problems())
def test_forward_and_backward_agree_with_the_reference(problem):
    for mine, theirs in both(*problem):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize("centered", [True, False])
def test_first_and_second_derivatives(body, dims, centered):
    mask = torch.rand(3, 4, 3) < 0.7
    mask[0, :2], mask[1] = False, False
    values, weight, bias = (
        torch.randn(shape, dtype=torch.float64, requires_grad=True)
        for shape in ((3, 4, 3), (4, 3)[2 - dims :], (4, 3)[2 - dims :])
    )

    def normalized(x, w, b):
        return kernels.masked_layer_norm(x, mask, dims, w, b, 0.1, centered)[0] ** 2

    with use_kernels(body):
        assert torch.autograd.gradcheck(normalized, (values, weight, bias))
        assert torch.autograd.gradgradcheck(normalized, (values, weight, bias))


def test_several_gradients_at_once():
    values, mask = torch.randn(40, 30, requires_grad=True), torch.rand(40, 30) < 0.5
    result, *_ = kernels.masked_layer_norm(values, mask, 1)
    grads = torch.randn(3, 40, 30)
    (stacked,) = torch.autograd.grad(result, values, grads, is_grads_batched=True, retain_graph=True)
    for grad, expected in zip(grads, stacked, strict=True):
        torch.testing.assert_close(torch.autograd.grad(result, values, grad, retain_graph=True)[0], expected)


def test_results_do_not_depend_on_the_number_of_threads():
    values, mask = torch.randn(1000, 1000, requires_grad=True), torch.rand(1000, 1000) < 0.5
    weight = torch.randn(1000, requires_grad=True)
    threads, results = torch.get_num_threads(), []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            out, *_ = kernels.masked_layer_norm(values, mask, 1, weight)
            results.append([out, *torch.autograd.grad(out.sum(), (values, weight))])
    finally:
        torch.set_num_threads(threads)
    for result in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(result, results[0], strict=True))


def test_mistakes_in_the_mask_are_named():
    with pytest.raises(
        TypeError, match=r"mask must be a Boolean tensor \(True = specified\); got torch.float32"
    ):
        kernels.masked_layer_norm(torch.ones(3), torch.ones(3), 1)
