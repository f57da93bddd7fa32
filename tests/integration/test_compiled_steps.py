"""A compiled training step, in which an optimizer's step is one call, on gradients of every kind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import maskgrad as mg
from tests.poison import nan

OPTIMIZERS = [name for name in mg.optim.__all__ if isinstance(getattr(mg.optim, name), type)]


def parameters() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        kind: torch.randn(6, 3, generator=generator).requires_grad_() for kind in ("dense", "coo", "masked")
    }


def batches(number: int) -> list[tuple[Tensor, Tensor]]:
    """Rows to look up, and a mask; the last mask is empty."""
    generator = torch.Generator().manual_seed(1)
    found = [
        (torch.randint(6, (4,), generator=generator), torch.rand(6, 3, generator=generator) < 0.5)
        for _ in range(number)
    ]
    return [*found[:-1], (found[-1][0], torch.zeros(6, 3).bool())]


def train(params: dict[str, Tensor], optimizer: Any, rows: Tensor, mask: Tensor) -> None:
    """A dense, a COO and a masked gradient, and a step."""
    optimizer.zero_grad()
    (gradient,) = torch.autograd.grad(params["masked"].square().sum(), params["masked"])
    mg.attach_gradient(params["masked"], mg.masked(torch.where(mask, gradient, nan), mask))
    looked_up = F.embedding(rows, params["coo"], sparse=True)
    (params["dense"].square().sum() + looked_up.square().sum()).backward()
    optimizer.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_compiled_training_step_is_compiled_once_and_changes_nothing(name: str) -> None:
    ours, theirs = parameters(), parameters()
    optimizers = [getattr(mg.optim, name)([*params.values()], lr=0.01) for params in (ours, theirs)]
    fast = torch.compile(train, backend="eager")
    first, *others = batches(4)
    fast(ours, optimizers[0], *first)
    train(theirs, optimizers[1], *first)
    with mg.assert_no_recompile():
        for batch in others:
            fast(ours, optimizers[0], *batch)
    for batch in others:
        train(theirs, optimizers[1], *batch)
    for kind, param in ours.items():
        assert torch.equal(param, theirs[kind]), kind
    start = parameters()
    assert all(not torch.equal(param, start[kind]) for kind, param in ours.items())
