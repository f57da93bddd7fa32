"""The oracle for gradients per sample: the definition, sample by sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import maskgrad as mg

__all__ = ["METHODS", "assert_equal_to_the_loop", "loop", "network", "smooth"]

METHODS = pytest.mark.parametrize("method", ["batched", "loop"])


def network() -> nn.Module:
    """An MLP."""
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def smooth(output: Any, *_: Any) -> Tensor:
    """A loss that tells all outputs apart."""
    return (output.sin() * torch.arange(1, output.numel() + 1, dtype=output.dtype).view_as(output)).sum()


def loop(
    model: nn.Module, loss_fn: Callable[..., Any], inputs: Any, targets: Any = None
) -> dict[str, Tensor]:
    """The gradient of every sample, dense; each sees the same buffers, and frozen entries have 0."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    size = next(t for t in pytree.tree_leaves(inputs) if isinstance(t, Tensor)).shape[0]
    rows: dict[str, list[Tensor]] = {name: [] for name in named}
    buffers = [buffer.clone() for buffer in model.buffers()]
    for i in range(size):
        one, target = pytree.tree_map(
            lambda t: t[i : i + 1] if isinstance(t, Tensor) else t,  # noqa: B023
            (inputs, targets),
        )
        args, kwargs = ((), one) if isinstance(one, dict) else (one if isinstance(one, tuple) else (one,), {})
        output = model(*args, **kwargs)
        loss = loss_fn(output) if targets is None else loss_fn(output, target)
        found = torch.autograd.grad(loss.reshape(()), list(named.values()), allow_unused=True)
        for (name, p), gradient in zip(named.items(), found, strict=True):
            dense = torch.zeros_like(p) if gradient is None else gradient.to_dense()
            mask = mg.optim.trained_entries(p)
            rows[name].append(dense if mask is None else dense * mask)
        for buffer, before in zip(model.buffers(), buffers, strict=True):
            buffer.copy_(before)
    return {name: torch.stack(row).detach() for name, row in rows.items()}


def assert_equal_to_the_loop(
    model: nn.Module, loss_fn: Callable[..., Any], *batch: Any, **options: Any
) -> dict[str, Tensor]:
    """The gradients, after a comparison of them, their norms and their clipped sums with the loop."""
    expected = loop(model, loss_fn, *batch)
    found = mg.per_sample_grad(model, loss_fn, *batch, **options)
    assert list(found) == list(expected)
    for name, gradient in found.items():
        assert not gradient.requires_grad
        torch.testing.assert_close(gradient.to_dense(), expected[name], msg=lambda m, n=name: f"{n}: {m}")
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in expected.values()]).norm(dim=0)
    torch.testing.assert_close(mg.per_sample_grad_norms(model, loss_fn, *batch, **options), norms)
    limit = norms.median().item()
    factors = (limit / (norms + 1e-6)).clamp(max=1)
    for reduction, number in (("sum", 1), ("mean", len(norms))):
        model.zero_grad()
        for rounds in (1, 2):
            clipped = mg.clipped_backward(
                model, loss_fn, *batch, max_norm=limit, reduction=reduction, **options
            )
            torch.testing.assert_close(clipped, norms)
            for name, p in model.named_parameters():
                total = torch.einsum("b,b...->...", factors, expected[name]) * rounds / number
                if p.grad is None:
                    assert not total.any(), name
                else:
                    torch.testing.assert_close(p.grad.to_dense(), total)
    return found
