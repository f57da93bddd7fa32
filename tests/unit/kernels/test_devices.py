"""Devices other than CPUs and CUDA take the formula of each kernel; on Apple's GPU the results are those of the CPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import maskgrad as mg
from maskgrad.kernels import explain

LINES = {
    "mean": lambda x: x.mean(1).filled(0.0),
    "variance": lambda x: x.var(1).filled(0.0),
    "softmax": lambda x: x.softmax(1).filled(0.0),
    "logsumexp": lambda x: x.logsumexp(1).filled(0.0),
    "largest": lambda x: x.amax(1).filled(0.0),
    "loss": lambda x: F.mse_loss(x, torch.ones(x.shape, device=x.device)),
}


def _has_mps() -> bool:
    """Whether there is one that computes: virtual machines report one without memory."""
    try:
        return torch.ones(1, device="mps").item() == 1
    except (RuntimeError, AssertionError, NotImplementedError):
        return False


def _value_and_gradient(line: str, device: str) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    data, mask = torch.randn(300, 300, generator=generator), torch.rand(300, 300, generator=generator) < 0.5
    mask[0] = False
    data = data.masked_fill(~mask, torch.nan).to(device).requires_grad_()
    value = LINES[line](mg.masked(data, mask.to(device)))
    (gradient,) = torch.autograd.grad(value.square().sum(), data)
    return [value.detach().cpu(), gradient.cpu()]


def test_devices_without_loops_take_the_formula() -> None:
    x, mask = torch.ones(300, 300), torch.ones(300, 300, dtype=torch.bool)
    assert explain("masked_sum", x, mask) == ""
    assert "not on the CPU" in explain("masked_sum", x.to("meta"), mask.to("meta"))


@pytest.mark.every
@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize(
    "device",
    ["cpu", pytest.param("mps", marks=pytest.mark.skipif(not _has_mps(), reason="no GPU of Apple's"))],
)
def test_values_and_gradients_are_those_of_the_reference(line: str, device: str) -> None:
    with mg.use_kernels("reference"):
        expected = _value_and_gradient(line, "cpu")
    found = _value_and_gradient(line, device)
    torch.testing.assert_close(found, expected, equal_nan=False)
