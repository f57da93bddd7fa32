"""Gradients for each sample where targets, inputs or whole samples are missing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import maskgrad as mg
from tests.unit.gradients.sample_loop import METHODS, loop, network

nan, inf = float("nan"), float("inf")
D = torch.float64


@pytest.mark.parametrize("garbage", [nan, inf, -inf, 1e38])
@METHODS
def test_masked_targets_inputs_and_samples(garbage: float, method: Any) -> None:
    model = network()
    x, t = torch.randn(4, 3, dtype=D), torch.randn(4, 2, dtype=D)
    kept = torch.tensor([[1, 1], [1, 0], [0, 0], [0, 1]]).bool()
    masked = mg.masked(t.masked_fill(~kept, garbage), kept)

    def of_kept(output: Tensor, target: Tensor, mask: Tensor) -> Tensor:
        return (output - target)[mask].square().mean() if mask.any() else output.sum() * 0

    rows = [
        loop(model, lambda y, i=i: of_kept(y, t[i : i + 1], kept[i : i + 1]), x[i : i + 1]) for i in range(4)
    ]
    spoiled = x.clone()
    spoiled[2] = garbage  # nothing of this sample is looked at
    for inputs in (x, spoiled):
        found = mg.per_sample_grad(model, F.mse_loss, inputs, masked, method=method)
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, torch.cat([row[name] for row in rows]))
            assert not gradient[2].any()
        norms = mg.per_sample_grad_norms(model, F.mse_loss, inputs, masked, method=method)
        assert norms[2] == 0
        assert norms[0] > 0
        fresh = network()
        mg.clipped_backward(fresh, F.mse_loss, inputs, masked, max_norm=1.0, method=method)
        assert all(p.grad is not None and p.grad.isfinite().all() for p in fresh.parameters())

    mask = torch.tensor([[1, 0, 1], [1, 1, 1], [0, 0, 0], [0, 1, 0]]).bool()
    incomplete = mg.masked(x.masked_fill(~mask, garbage), mask)
    found = mg.per_sample_grad(model, F.mse_loss, incomplete, t, method=method)
    zeros = x.masked_fill(~mask, 0)
    expected = loop(model, F.mse_loss, zeros[[0, 1, 3]], t[[0, 1, 3]])
    for name, gradient in found.items():
        torch.testing.assert_close(gradient[[0, 1, 3]], expected[name])
        assert not gradient[2].any()


@METHODS
def test_a_loss_of_nothing_leaves_another_loss_its_gradient(method: Any) -> None:
    model, x, t = network(), torch.randn(4, 3, dtype=D), torch.randn(4, 2, dtype=D)
    known = torch.tensor([True, False, True, False])
    masked = mg.masked(torch.where(known[:, None], t, nan), known[:, None].expand(4, 2))

    def both(y: Tensor, given: Any) -> Any:
        return F.mse_loss(y, given["main"]) + 0.1 * F.l1_loss(y, given["auxiliary"])

    targets = {"main": t, "auxiliary": masked}
    expected = loop(model, both, x, {"main": t, "auxiliary": t})
    main = loop(model, F.mse_loss, x, t)
    found = mg.per_sample_grad(model, both, x, targets, method=method)
    mg.clipped_backward(model, both, x, targets, max_norm=inf, method=method)
    for name, p in model.named_parameters():
        wanted = torch.where(known.view(-1, *[1] * p.dim()), expected[name], main[name])
        torch.testing.assert_close(found[name], wanted)
        torch.testing.assert_close(p.grad, wanted.mean(0))  # all four samples count


@METHODS
def test_a_real_nan_is_no_missing_target(method: Any) -> None:
    """Of NaN the absolute error has the derivative 0: a sample of nothing is not told by its gradient alone."""
    model, x = network(), torch.randn(3, 3, dtype=D)
    x[1] = nan
    t = mg.masked(torch.zeros(3, 2, dtype=D), torch.tensor([[1, 1], [1, 1], [0, 0]]).bool())
    norms = mg.per_sample_grad_norms(model, F.l1_loss, x, t, method=method)
    assert norms.isnan().tolist() == [False, True, False]
    assert norms[2] == 0
