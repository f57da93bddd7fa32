"""The oracle for gradients per sample: the definition, sample by sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

__all__ = ["METHODS", "loop", "network", "smooth"]

METHODS = pytest.mark.parametrize("method", ["batched", "loop"])


def network() -> nn.Module:
    """An MLP."""
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def smooth(output: Any, *_: Any) -> Tensor:
    """A loss that tells all outputs apart, of whatever a module returns."""
    leaves = [o for o in pytree.tree_leaves(output) if isinstance(o, Tensor) and o.is_floating_point()]
    parts = [(o.sin() * torch.arange(1, o.numel() + 1, dtype=o.dtype).view_as(o)).sum() for o in leaves]
    return torch.stack(parts).sum()


def loop(
    model: nn.Module, loss_fn: Callable[..., Any], inputs: Any, targets: Any = None
) -> dict[str, Tensor]:
    """The gradient of every sample, each on its own, dense."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    size = next(t for t in pytree.tree_leaves(inputs) if isinstance(t, Tensor)).shape[0]
    rows: dict[str, list[Tensor]] = {name: [] for name in named}
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
            rows[name].append(torch.zeros_like(p) if gradient is None else gradient.to_dense())
    return {name: torch.stack(row).detach() for name, row in rows.items()}
