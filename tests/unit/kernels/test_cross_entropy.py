"""Cross entropy over the specified classes: the reference against torch, the compiled body against both."""

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

ROUNDING = {torch.float64: 1e-13, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@pytest.fixture(autouse=True)
def _compiled_bodies_for_small_tensors_too():
    with use_kernels("cpu"):
        yield


def problem(shape, dtype=torch.float32, garbage=math.nan, density=0.5):
    """Logits with garbage under a mask that is empty at some positions, and at the others holds for the label."""
    dim = 1 if len(shape) > 1 else 0
    positions = shape[:dim] + shape[dim + 1 :]
    labels = torch.randint(shape[dim], positions)
    mask = (torch.rand(shape) < density).scatter(dim, labels.unsqueeze(dim), True)
    mask = mask & (torch.rand(positions) < 0.8).unsqueeze(dim)
    return oracles.soiled((torch.randn(shape) * 3).to(dtype), mask, garbage), mask, labels


def alone(logits, mask, labels, smoothing):
    """torch on each position by itself, its unspecified classes deleted, in float64: losses and gradients."""
    dim = 1 if logits.ndim > 1 else 0
    rows, marks = (x.movedim(dim, -1).reshape(-1, x.shape[dim]) for x in (logits.double(), mask))
    losses, grads = [], torch.zeros_like(rows)
    for i, (row, mark, label) in enumerate(zip(rows, marks, labels.reshape(-1).tolist(), strict=True)):
        if not mark.any():
            losses.append(0.0)
            continue
        kept = row[mark].detach().requires_grad_()
        loss = F.cross_entropy(kept, mark[:label].sum(), label_smoothing=smoothing)
        losses.append(loss.item())
        (grads[i, mark],) = torch.autograd.grad(loss, kept)
    moved = logits.movedim(dim, -1).shape
    return torch.tensor(losses, dtype=torch.float64).reshape(labels.shape), grads.view(moved).movedim(-1, dim)


SHAPES = [
    (5,),
    (1,),
    (9, 7),
    (1, 3),
    (4, 1),
    (3, 5, 11),
    (2, 3, 4, 5),
    (3, 2000),
    (2, 7, 600),
    (0, 3),
    (3, 4, 0),
]


@pytest.mark.parametrize("body", [reference, cpu], ids=["reference", "cpu"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_any_shape(body, shape, smoothing):
    logits, mask, labels = problem(shape)
    loss, slope = alone(logits, mask, labels, smoothing)
    found, normalizer = body.masked_cross_entropy(logits, mask, labels, smoothing)
    torch.testing.assert_close(found.double(), loss, rtol=1e-5, atol=1e-5)
    ones = torch.ones(labels.shape)
    grad = body.masked_cross_entropy_gradient(ones, logits, mask, labels, normalizer, smoothing)
    assert not grad[~mask].count_nonzero()
    torch.testing.assert_close(grad.double(), slope, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("garbage", oracles.GARBAGE)
@pytest.mark.parametrize("dtype", list(ROUNDING))
def test_any_dtype_and_garbage(dtype, garbage):
    logits, mask, labels = problem((30, 41), dtype, garbage)
    grad = oracles.soiled(torch.randn(30).to(dtype), mask.any(1), garbage)
    loss, slope = alone(logits, mask, labels, 0.0)
    expected = slope * torch.where(mask.any(1), grad, 0).double().unsqueeze(1)
    for body in (reference, cpu):
        found, normalizer = body.masked_cross_entropy(logits, mask, labels, 0.0)
        assert found.dtype == (dtype if dtype == torch.float64 else torch.float32)
        torch.testing.assert_close(
            found.double(), loss, rtol=1e-12 if dtype == torch.float64 else 3e-6, atol=1e-5
        )
        result = body.masked_cross_entropy_gradient(grad, logits, mask, labels, normalizer, 0.0)
        assert result.dtype == dtype
        assert not result[~mask].count_nonzero()
        torch.testing.assert_close(
            result.double(),
            expected,
            rtol=ROUNDING[dtype],
            atol=ROUNDING[dtype] * (1 if dtype.itemsize > 2 else 0.1),
        )


@pytest.mark.parametrize("layout", ["permuted", "sliced", "expanded mask", "whole mask", "expanded logits"])
def test_any_strides(layout):
    logits, mask, labels = problem((6, 5, 70))
    if layout == "permuted":
        logits = logits.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    elif layout == "sliced":
        logits = torch.cat([logits, logits], 2)[:, :, ::2]
        mask = torch.cat([mask, mask], 2)[:, :, ::2]
    elif layout == "expanded logits":
        logits, mask = torch.randn(6, 5, 1).expand(6, 5, 70), torch.ones(1, dtype=torch.bool).expand(6, 5, 70)
    else:
        logits, positions = torch.randn(6, 5, 70), torch.rand(6, 1, 70) < 0.5
        mask = (positions if layout == "expanded mask" else torch.ones(1, dtype=torch.bool)).expand(6, 5, 70)
    labels = torch.where(mask.gather(1, labels.unsqueeze(1)).squeeze(1), labels, mask.long().argmax(1))
    loss, slope = alone(logits, mask, labels, 0.1)
    found, normalizer = cpu.masked_cross_entropy(logits, mask, labels, 0.1)
    torch.testing.assert_close(found.double(), loss, rtol=1e-5, atol=1e-5)
    grad = cpu.masked_cross_entropy_gradient(torch.ones(6, 70), logits, mask, labels, normalizer, 0.1)
    torch.testing.assert_close(grad.double(), slope, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@settings(max_examples=examples(60))
@given(st.data())
def test_both_bodies_agree_forward_and_backward(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    torch.manual_seed(data.draw(st.integers(0, 2**16)))
    garbage, smoothing = data.draw(st.sampled_from(oracles.GARBAGE)), data.draw(st.sampled_from([0.0, 0.2]))
    logits, mask, labels = problem(shape, torch.float64, garbage, data.draw(st.sampled_from([0.0, 0.5, 1.0])))
    results = []
    for body in ("reference", "cpu"):
        x = logits.clone().requires_grad_()
        with use_kernels(body), torch.autograd.set_detect_anomaly(True, check_nan=True):
            loss, _ = kernels.masked_cross_entropy(x, mask, labels, smoothing)
            (grad,) = torch.autograd.grad(loss.cos().sum(), x, create_graph=True)
            (second,) = torch.autograd.grad((grad * grad).sum(), x)
        assert not grad[~mask].count_nonzero()
        assert not second[~mask].count_nonzero()
        results.append((loss.detach(), grad.detach(), second))
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("body", ["reference", "cpu"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_first_and_second_derivatives(body, smoothing):
    logits, mask, labels = problem((4, 3, 2), torch.float64, 0.5)
    with use_kernels(body):
        for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
            assert check(
                lambda x: kernels.masked_cross_entropy(x, mask, labels, smoothing)[0], logits.requires_grad_()
            )


def test_what_is_not_finite_and_specified_surfaces_as_in_torch():
    inf, nan = math.inf, math.nan
    logits = torch.tensor([[inf, 0, 0], [0, inf, 0], [-inf, 0, 0], [0, -inf, 0], [nan, 0, 0], [-inf] * 3])
    labels, mask = torch.zeros(6, dtype=torch.int64), torch.ones(6, 3, dtype=torch.bool)
    leaf = logits.clone().requires_grad_()
    expected = F.cross_entropy(leaf, labels, reduction="none")
    found, normalizer = cpu.masked_cross_entropy(logits, mask, labels, 0.0)
    torch.testing.assert_close(found, expected.detach(), equal_nan=True)
    (slope,) = torch.autograd.grad(expected.sum(), leaf)
    result = cpu.masked_cross_entropy_gradient(torch.ones(6), logits, mask, labels, normalizer, 0.0)
    torch.testing.assert_close(result, slope, equal_nan=True)
