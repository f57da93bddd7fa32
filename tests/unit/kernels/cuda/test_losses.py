"""Losses of two tensors for CUDA against the reference and torch, both directions."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from maskgrad.kernels.cuda import tiles
from tests.unit.kernels import oracles
from tests.unit.kernels.bodies import cuda, reference
from tests.unit.kernels.samples_losses import NUMBERS

ROUNDING = {torch.float64: 1e-14, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
TORCH = {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "huber": lambda x, t, **options: F.huber_loss(x, t, delta=0.7, **options),
    "smooth_l1": lambda x, t, **options: F.smooth_l1_loss(x, t, beta=0.5, **options),
    "logits": F.binary_cross_entropy_with_logits,
    "probabilities": F.binary_cross_entropy,
}

pytestmark = pytest.mark.usefixtures("device")


def operands(name, shape, dtype=torch.float32, garbage=math.nan):
    """Input, target, and a mask under which both hold garbage."""
    probable = name == "probabilities"
    input = torch.rand(shape).clamp(0.01, 0.99) if probable else torch.randn(shape) * 2
    target = torch.rand(shape) if NUMBERS[name][0] != "distance" else torch.randn(shape)
    mask = torch.rand(shape) < 0.5
    return *(oracles.soiled(x.to(dtype), mask, garbage) for x in (input, target)), mask


def check(name, input, target, mask, grad):
    """All three kernels against the reference."""
    numbers, tolerance = NUMBERS[name], ROUNDING[input.dtype]
    for kernel, arguments, slack in (
        ("masked_loss", (input, target, mask), 1),
        ("masked_loss_sum", (input, target, mask), 1),
        ("masked_loss_gradient", (grad, input, target, mask), 20 if name == "probabilities" else 2),
    ):
        found, expected = (getattr(body, kernel)(*arguments, *numbers) for body in (cuda, reference))
        if kernel == "masked_loss_sum":
            assert [x.dtype for x in found] == [x.dtype for x in expected]
            assert found[1].item() == mask.sum().item()
            rtol = 1e-12 if input.dtype == torch.float64 else 1e-5
            torch.testing.assert_close(found, expected, rtol=rtol, atol=1e-6)
            continue
        assert found.dtype == input.dtype
        assert not (found != 0)[~mask].any()
        torch.testing.assert_close(found, expected, rtol=tolerance * 4, atol=tolerance * slack)


@pytest.mark.parametrize("dtype", list(ROUNDING))
@pytest.mark.parametrize("name", list(NUMBERS))
def test_garbage_under_the_mask_is_never_added(name, dtype):
    for garbage in oracles.GARBAGE:
        input, target, mask = operands(name, (17, 33), dtype, garbage)
        grad = oracles.soiled(torch.randn(17, 33).to(dtype), mask, garbage)
        check(name, input, target, mask, grad)
        x = input[mask].double().requires_grad_()
        loss = TORCH[name](x, target[mask].double(), reduction="none")
        (slope,) = torch.autograd.grad(loss, x, grad[mask].double())
        found = cuda.masked_loss(input, target, mask, *NUMBERS[name])[mask].double()
        close = {"rtol": ROUNDING[dtype] * 4, "atol": ROUNDING[dtype] * 2}
        torch.testing.assert_close(found, loss.detach(), **close)
        found = cuda.masked_loss_gradient(grad, input, target, mask, *NUMBERS[name])[mask].double()
        close["atol"] *= 20 if name == "probabilities" else 2
        torch.testing.assert_close(found, slope, **close)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (1, 1), (7,), (0, 3), (2, 3, 1, 5), (2049,)])
def test_any_size(shape):
    for name in ("smooth_l1", "logits"):
        input, target, mask = operands(name, shape)
        for marks in (mask, torch.zeros_like(mask), torch.zeros((), dtype=torch.bool).expand(shape)):
            check(name, input.nan_to_num(), target.nan_to_num(), marks, torch.randn(()))


def layouts():
    def make():
        return torch.rand(4, 30, 5)

    mask = torch.rand(4, 30, 5) < 0.5
    return {
        "permuted together": (make().permute(2, 0, 1), make().permute(2, 0, 1), mask.permute(2, 0, 1)),
        "target permuted": (make(), torch.rand(5, 30, 4).permute(2, 1, 0), mask),
        "mask permuted": (make(), make(), (torch.rand(5, 30, 4) < 0.5).permute(2, 1, 0)),
        "sliced": (torch.rand(4, 30, 10)[:, :, ::2], torch.rand(4, 40, 5)[:, 3:33], mask),
        "expanded target": (make(), torch.rand(4, 30, 1).expand(4, 30, 5), mask),
        "expanded input": (torch.rand(1, 30, 5).expand(4, 30, 5), make(), mask),
        "numbers": (torch.rand(()).expand(4, 30, 5), torch.rand(()).expand(4, 30, 5), mask),
        "token mask": (make(), make(), (torch.rand(4, 30, 1) < 0.5).expand(4, 30, 5)),
        "feature mask": (make(), make(), (torch.rand(5) < 0.5).expand(4, 30, 5)),
    }


@pytest.mark.parametrize("layout", list(layouts()))
def test_any_strides(layout, device):
    input, target, mask = (x.to(device) for x in layouts()[layout])
    grads = torch.tensor(3.0), torch.rand(input.shape[-1:]), torch.rand(input.shape[::-1]).permute(2, 1, 0)
    for grad in grads:
        check("huber", input, target, mask, grad)
    check("probabilities", input, target, mask, grads[0])


@pytest.mark.parametrize("name", ["mse", "logits"])
def test_sums_are_put_together_from_pieces(monkeypatch, name):
    monkeypatch.setattr(tiles, "WIDEST", 16)
    input, target, mask = operands(name, (6, 30), torch.float64)
    assert tiles.table((input, target, mask), (0, 1)).tile.pieces > 1
    check(name, input, target, mask, torch.randn(6, 1, dtype=torch.float64))


@pytest.mark.parametrize("name", list(NUMBERS))
def test_what_is_not_finite_and_specified_surfaces_as_in_torch(name):
    if name == "probabilities":
        input, target = torch.tensor([[0.0, 1.0, 0.0, 1.0, 1e-30, 0.25], [0.0, 1.0, 1.0, 0.0, 1.0, 0.5]])
    else:
        input = torch.tensor([math.nan, math.inf, -math.inf, 1e38, 88.0, -88.0, -1e38, 0.0, -1e-6])
        target = torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0])
    input, mask = input.requires_grad_(), torch.ones_like(target, dtype=torch.bool)
    expected = TORCH[name](input, target, reduction="none")
    (slope,) = torch.autograd.grad(expected, input, torch.ones_like(expected))
    found = cuda.masked_loss(input, target, mask, *NUMBERS[name])
    torch.testing.assert_close(found, expected.detach(), equal_nan=True)
    found = cuda.masked_loss_gradient(torch.ones(()), input, target, mask, *NUMBERS[name])
    torch.testing.assert_close(found, slope, equal_nan=True)


@pytest.mark.parametrize(("input", "target"), [(1.5, 0.5), (-0.1, 0.5), (0.5, 1.5), (math.nan, 0.5)])
def test_what_is_no_probability_is_refused_where_it_is_specified(device, input, target):
    if device.type == "cuda":
        pytest.skip("an error of the device makes it useless for all later tests")
    x, t, mask = torch.full((9,), 0.5), torch.full((9,), 0.5), torch.ones(9, dtype=torch.bool)
    x[4], t[4] = input, target
    for kernel in (cuda.masked_loss, cuda.masked_loss_sum):
        with pytest.raises(RuntimeError, match="should be between 0 and 1"):
            kernel(x, t, mask, "probabilities", ())
        kernel(x, t, mask & (torch.arange(9) != 4), "probabilities", ())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_small_probabilities_and_large_logits_cost_no_digits(dtype):
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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_sum_of_halves_outgrows_them(dtype):
    input, target = (torch.tensor(x, dtype=dtype).expand(50_000) for x in (10.0, 0.0))
    total, count = cuda.masked_loss_sum(input, target, torch.tensor(True).expand(50_000), *NUMBERS["mse"])
    assert (total.item(), count.item()) == (5_000_000, 50_000)


def test_mixed_dtypes_run_the_reference():
    x, t, mask = torch.randn(50), torch.randn(50, dtype=torch.float64), torch.rand(50) < 0.5
    found = cuda.masked_loss(x, t, mask, *NUMBERS["mse"])
    torch.testing.assert_close(found, torch.where(mask, (x - t) ** 2, 0).float())
    total, _ = cuda.masked_loss_sum(x, t, mask, *NUMBERS["mse"])
    torch.testing.assert_close(total.double(), ((x - t) ** 2)[mask].sum(), rtol=1e-5, atol=0)
    slope = cuda.masked_loss_gradient(torch.ones(()), x, t, mask, *NUMBERS["mse"])
    torch.testing.assert_close(slope, torch.where(mask, 2 * (x - t), 0).float())


def test_places_beyond_32_bits(monkeypatch):
    monkeypatch.setattr("maskgrad.kernels.cuda.compiler._NARROW", 10)
    check("smooth_l1", *operands("smooth_l1", (30, 7)), torch.randn(30, 7))
