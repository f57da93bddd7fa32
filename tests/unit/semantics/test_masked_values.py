"""What lies under a mask changes neither results nor gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import maskgrad as mg
from tests.poison import inf, nan

LENGTHS = torch.tensor([2, 5, 0])
KEPT = torch.arange(5) < LENGTHS[:, None]


@pytest.mark.parametrize("poison", [0.0, 1e38, inf, nan])
@pytest.mark.parametrize("way", ["backward", "hook", "filled"])
def test_no_gradient_comes_from_what_is_unspecified(poison: float, way: str) -> None:
    """Neither numbers under the mask nor gradients that somebody sends there reach parameters or input."""

    def run(x: Any) -> Any:
        hidden = F.gelu(F.linear(x, first)) * 1.5
        return F.layer_norm(F.linear(torch.exp(hidden * 0.1) + hidden, second) + 1, (3,))

    x = torch.where(KEPT[..., None], torch.randn(3, 5, 4, dtype=torch.float64), poison).requires_grad_()
    first, second = (torch.randn(size, dtype=torch.float64, requires_grad=True) for size in ((6, 4), (3, 6)))
    seed, leaves = torch.randn(3, 5, 3, dtype=torch.float64), (x, first, second)
    expected = torch.autograd.grad(run(x[KEPT]), leaves, seed[KEPT])
    out, dirty = run(mg.from_lengths(x, LENGTHS)), torch.where(KEPT[..., None], seed, nan)
    if way == "backward":
        out.backward(dirty)
    elif way == "hook":
        out.register_hook(lambda _: dirty)
        (out.filled(0) * seed).sum().backward()
    else:
        (out.filled(nan) * torch.where(KEPT[..., None], seed, 0)).sum().backward()
    torch.testing.assert_close([leaf.grad for leaf in leaves], list(expected))
    assert (x.grad[~KEPT] == 0).all()
