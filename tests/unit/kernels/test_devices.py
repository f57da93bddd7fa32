"""On Apple's GPU, too, values and gradients are those of the CPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import maskgrad as mg


def _has_mps() -> bool:
    """Whether there is one that computes: virtual machines report one without memory."""
    try:
        return torch.ones(1, device="mps").item() == 1
    except (RuntimeError, AssertionError, NotImplementedError):
        return False


@pytest.mark.skipif(not _has_mps(), reason="no GPU of Apple's")
def test_values_and_gradients_are_those_of_the_cpu() -> None:
    data, mask, found = torch.randn(300, 300), torch.rand(300, 300) < 0.5, []
    mask[0] = False
    for device in ("cpu", "mps"):
        leaf = data.masked_fill(~mask, torch.nan).to(device).requires_grad_()
        x = mg.masked(leaf, mask.to(device))
        parts = [x.mean(1), x.var(1), x.softmax(1), x.logsumexp(1), x.amax(1)]
        values = [*(y.filled(0.0) for y in parts), F.mse_loss(x, torch.ones_like(leaf))]
        slopes = [torch.autograd.grad(y.square().sum(), leaf, retain_graph=True)[0] for y in values]
        found.append([y.detach().cpu() for y in (*values, *slopes)])
    torch.testing.assert_close(found[1], found[0], equal_nan=False)
