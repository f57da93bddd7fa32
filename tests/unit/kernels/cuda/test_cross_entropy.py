"""Cross entropy over the specified classes for CUDA against the reference and torch, both directions."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from maskgrad.kernels.cuda import tiles
from tests.unit.kernels import oracles
from tests.unit.kernels.bodies import cuda, reference

ROUNDING = {torch.float64: 1e-13, torch.float32: 4e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}

pytestmark = pytest.mark.usefixtures("device")


def problem(shape, dtype=torch.float32, garbage=math.nan, density=0.5):
    """Logits with garbage under a mask that is empty at some positions, and at the others holds for the label."""
    dim = 1 if len(shape) > 1 else 0
    positions = shape[:dim] + shape[dim + 1 :]
    labels = torch.randint(max(shape[dim], 1), positions)
    mask = torch.rand(shape) < density
    if shape[dim]:
        mask = mask.scatter(dim, labels.unsqueeze(dim), True) & (torch.rand(positions) < 0.8).unsqueeze(dim)
    return oracles.soiled((torch.randn(shape) * 3).to(dtype), mask, garbage), mask, labels


def check(input, mask, labels, smoothing=0.0):
    """Both directions against the reference."""
    arguments = input, mask, labels, smoothing
    found, expected = (body.masked_cross_entropy(*arguments) for body in (cuda, reference))
    assert [x.dtype for x in found] == [x.dtype for x in expected]
    tolerance = ROUNDING[expected[0].dtype]
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * 4, equal_nan=True)
    dim = 1 if input.ndim > 1 else 0
    grad = torch.randn(labels.shape).to(found[0].dtype).masked_fill(~mask.any(dim), math.nan)
    arguments = grad, input, mask, labels, expected[1], smoothing
    slope, wanted = (body.masked_cross_entropy_gradient(*arguments) for body in (cuda, reference))
    assert slope.dtype == input.dtype
    assert not (slope != 0)[~mask].any()
    tolerance = ROUNDING[input.dtype]
    torch.testing.assert_close(slope, wanted, rtol=tolerance, atol=tolerance * 2, equal_nan=True)
    return found[0], slope, grad


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("dtype", list(ROUNDING))
def test_garbage_under_the_mask_is_never_added(dtype, smoothing):
    for garbage in oracles.GARBAGE:
        input, mask, labels = problem((17, 9), dtype, garbage)
        loss, slope, grad = check(input, mask, labels, smoothing)
        for row in range(3):
            left = input[row][mask[row]].double().requires_grad_()
            if not len(left):
                assert loss[row] == 0
                continue
            label = mask[row, : labels[row]].sum()
            expected = F.cross_entropy(left, label, label_smoothing=smoothing)
            close = {"rtol": ROUNDING[dtype], "atol": ROUNDING[dtype]}
            torch.testing.assert_close(loss[row].double(), expected.detach(), **close)
            (by,) = torch.autograd.grad(expected, left, grad[row].double())
            torch.testing.assert_close(slope[row][mask[row]].double(), by, **close)


@pytest.mark.parametrize("shape", [(5,), (1,), (4, 7), (1, 1), (3, 5, 2, 3), (2, 4, 70), (0, 3), (2, 3, 0)])
@pytest.mark.parametrize("smoothing", [0.0, 1.0])
def test_any_shape(shape, smoothing):
    input, mask, labels = problem(shape)
    check(input, mask, labels, smoothing)
    check(input.nan_to_num(), torch.tensor(True).expand(shape), labels, smoothing)
    check(input, torch.zeros_like(mask), labels, smoothing)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_any_strides(smoothing):
    input, mask, labels = problem((4, 30, 6))
    clean = input.nan_to_num()
    check(torch.empty(6, 30, 4).permute(2, 1, 0).copy_(input), mask, labels, smoothing)
    check(input, torch.zeros(6, 4, 30, dtype=torch.bool).permute(1, 2, 0).copy_(mask), labels, smoothing)
    check(input, mask, torch.zeros(4, 12, dtype=torch.int64)[:, ::2].copy_(labels), smoothing)
    check(clean, mask.any(1, keepdim=True).expand(4, 30, 6), labels, smoothing)
    check(torch.randn(4, 30, 1).expand(4, 30, 6), mask, labels, smoothing)
    check(clean, torch.tensor(True).expand(4, 30, 6), torch.tensor(3).expand(4, 6), smoothing)
    input, mask, labels = problem((2, 5, 3, 7))
    check(input.to(memory_format=torch.channels_last), mask, labels, smoothing)


def test_many_classes(monkeypatch):
    check(*problem((3, 2500)), 0.1)
    monkeypatch.setattr(tiles, "WIDEST", 16)
    monkeypatch.setattr(tiles, "ENTRIES", 64)
    input, mask, labels = problem((2, 200), torch.float64)
    assert tiles.table((input, mask), (1,)).tile.pieces > 1
    check(input, mask, labels)
    check(input, mask, labels, 0.3)


def test_what_is_not_finite_stays_at_its_position():
    input, mask, labels = problem((7, 5), density=0.8)
    input = input.nan_to_num()
    mask[:5] = True
    for row, strange in enumerate([math.nan, math.inf, -math.inf, 1e38]):
        input[row, 2] = strange
    input[4] = -math.inf
    check(input, mask, labels)
    check(input, mask, labels, 0.1)


def test_a_label_that_is_no_class_has_the_loss_nan():
    input, mask = torch.randn(3, 5), torch.ones(3, 5, dtype=torch.bool)
    mask[2] = False
    loss, _ = cuda.masked_cross_entropy(input, mask, torch.tensor([5, -100, -1]), 0.0)
    assert loss.isnan().tolist() == [True, True, False]


def test_places_beyond_32_bits(monkeypatch):
    monkeypatch.setattr("maskgrad.kernels.cuda.compiler._NARROW", 10)
    check(*problem((30, 7)), 0.1)
