"""masked_batch_norm: the reference against torch on what is left, the compiled body against the reference."""

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
@pytest.mark.parametrize("garbage", oracles.GARBAGE)
@pytest.mark.parametrize("space", [(), (11,), (3, 5)])
def test_each_channel_is_torch_s_on_what_is_left_of_it(body, garbage, space):
    values = torch.randn(20, 7, *space, dtype=torch.float64)
    mask = torch.rand(values.shape) < 0.5
    mask[:, 3] = False
    weight, bias = torch.randn(2, 1, 7, *(1 for _ in space), dtype=torch.float64)
    dim = (0, *range(2, values.ndim))
    out, mean, variance, _, count = body.masked_batch_norm(
        oracles.soiled(values, mask, garbage), mask, dim, weight, bias, 1e-3
    )
    assert count.flatten().tolist() == [int(mask[:, c].sum()) for c in range(7)]
    assert not (out != 0)[~mask].any()
    for c in set(range(7)) - {3}:
        left = values[:, c][mask[:, c]]
        expected = F.batch_norm(left[:, None], None, None, weight.view(-1)[c : c + 1], bias.view(-1)[c : c + 1], True,
                                eps=1e-3)  # fmt: skip
        torch.testing.assert_close(out[:, c][mask[:, c]], expected[:, 0], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(mean.view(-1)[c], left.mean())
        torch.testing.assert_close(variance.view(-1)[c], left.var(correction=0))


def both(values, mask, dim, weight=None, bias=None, eps=1e-3):
    """Result, statistics and gradients by either body."""
    results = []
    for body in BODIES:
        leaves = [None if x is None else x.detach().requires_grad_() for x in (values, weight, bias)]
        with use_kernels(body):
            found = kernels.masked_batch_norm(leaves[0], mask, dim, *leaves[1:], eps)
            grad = torch.arange(values.numel()).reshape(values.shape).cos().to(values.dtype)
            given = [leaf for leaf in leaves if leaf is not None]
            gradients = torch.autograd.grad(found[0], given, grad.masked_fill(~mask, math.nan))
        assert found[0].dtype == values.dtype
        assert not (found[0] != 0)[~mask].any()
        assert not (gradients[0] != 0)[~mask].any()
        results.append([*(x.detach() for x in found), *gradients])
    return zip(*results, strict=True)


def parameters(values, dim, dtype=torch.float32):
    """A weight and a bias with an entry for each group."""
    return torch.randn(2, *(1 if d in dim else n for d, n in enumerate(values.shape))).to(dtype)


@pytest.mark.parametrize("layout", list(layouts()))
def test_any_strides(layout):
    values, mask = layouts()[layout]
    values = values if layout == "expanded values" else values.masked_fill(~mask, math.nan)
    for dims in range(1, 2**values.ndim):
        dim = tuple(d for d in range(values.ndim) if dims >> d & 1)
        for mine, theirs in both(values, mask, dim, *parameters(values, dim)):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("shape", "dim"),
    [((700, 1100), (0,)), ((64, 3, 4001), (0, 2)), ((9, 64, 70), (2,)), ((5, 2), (0,)), ((0, 3), (0,))],
)
def test_all_dtypes_and_sizes(dtype, shape, dim):
    values, mask = (torch.randn(shape) + 3).to(dtype), torch.rand(shape) < 0.5
    mask[:, :1] = False
    values = values.masked_fill(~mask, math.inf)
    tolerance = {torch.float16: 1e-2, torch.bfloat16: 8e-2, torch.float32: 2e-3}.get(dtype, 1e-10)
    for mine, theirs in both(values, mask, dim, *parameters(values, dim, dtype)):
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance * 10)


def test_an_infinite_scale_or_weight_reaches_only_what_is_specified():
    """Groups of three channels, as in group normalisation, one of them without entries."""
    values, mask = torch.randn(4, 3, 50), torch.rand(4, 3, 50) < 0.7
    values[2], mask[:, 1] = 1.0, False
    weight, bias = torch.randn(2, 1, 3, 1)
    weight[0, 1] = math.inf
    for mine, theirs in both(values, mask, (1, 2), weight, bias, 0.0):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4, equal_nan=True)
        assert not mine.isnan().all()


def test_a_gradient_that_is_one_number():
    values, mask = torch.randn(30, 40, 20), torch.rand(30, 40, 20) < 0.5
    found = []
    for body in BODIES:
        leaf = values.clone().requires_grad_()
        with use_kernels(body):
            out = kernels.masked_batch_norm(leaf, mask, (0, 2))[0]
            out.sum().backward(torch.tensor(2.0))
        found.append(leaf.grad)
    torch.testing.assert_close(*found, rtol=0, atol=1e-5)


@st.composite
def problems(draw):
    shape = tuple(draw(st.lists(st.integers(0, 7), min_size=1, max_size=4)))
    dim = tuple(d for d in range(len(shape)) if draw(st.booleans()))
    expanded = tuple(1 if draw(st.booleans()) else n for n in shape)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    mask = (torch.rand(expanded, generator=generator) < draw(st.sampled_from([0.0, 0.5, 1.0]))).expand(shape)
    # a parameter may vary within a group (group normalisation), and be the same for several (instance normalisation)
    sizes = [tuple(1 if draw(st.booleans()) else n for n in shape) for _ in range(2)]
    weight, bias = (
        torch.randn(size, generator=generator, dtype=torch.float64) if draw(st.booleans()) else None
        for size in sizes
    )
    return (
        values.masked_fill(~mask, draw(st.sampled_from(oracles.GARBAGE))),
        mask,
        dim,
        weight,
        bias,
        1e-3,
    )


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@settings(max_examples=examples(150))
@given(problems())
def test_forward_and_backward_agree_with_the_reference(problem):
    for mine, theirs in both(*problem):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("dim", [(0,), (0, 2), (2,)])
@pytest.mark.parametrize("shape", [(1, 4, 1), (1, 1, 3)])
def test_first_and_second_derivatives(body, dim, shape):
    mask = torch.rand(3, 4, 3) < 0.7
    mask[0, :2], mask[:, 1] = False, False
    sizes = ((3, 4, 3), shape, shape)
    tensors = tuple(torch.randn(size, dtype=torch.float64, requires_grad=True) for size in sizes)

    def normalized(x, w, b):
        return kernels.masked_batch_norm(x, mask, dim, w, b, 0.1)[0] ** 2

    with use_kernels(body):
        assert torch.autograd.gradcheck(normalized, tensors)
        assert torch.autograd.gradgradcheck(normalized, tensors)


def test_results_do_not_depend_on_the_number_of_threads():
    values, mask = torch.randn(50, 20, 1000, requires_grad=True), torch.rand(50, 20, 1000) < 0.5
    weight = torch.randn(1, 20, 1, requires_grad=True)
    threads, results = torch.get_num_threads(), []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            out, *_ = kernels.masked_batch_norm(values, mask, (0, 2), weight)
            results.append([out, *torch.autograd.grad((out**2).sum(), (values, weight))])
    finally:
        torch.set_num_threads(threads)
    for result in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(result, results[0], strict=True))


def test_mistakes_in_the_mask_are_named():
    with pytest.raises(
        TypeError, match=r"mask must be a Boolean tensor \(True = specified\); got torch.float32"
    ):
        kernels.masked_batch_norm(torch.ones(3, 2), torch.ones(3, 2), (0,))
