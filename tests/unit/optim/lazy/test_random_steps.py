"""Hundreds of random steps, every kind of gradient in turns: the dense optimizer's result, to rounding."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import nn

import maskgrad as mg
from tests.unit.optim.kinds import FULL
from tests.unit.optim.optimizers import CASES, Case
from tests.unit.optim.suite.behind import exactness

STEPS = 400
WAYS: dict[str, Any] = {
    **{name: kind for name, kind in FULL.items() if name != "whole"},
    "nothing": lambda dense: (dense * 0).to_sparse(1),
}


@pytest.mark.parametrize("case", [case for case in CASES.values() if not case.variant], ids=str)
def test_it_is_the_dense_result(case: Case) -> None:
    chance, generator = random.Random(0), torch.Generator().manual_seed(0)
    start = torch.randn(6, 4, dtype=torch.float64, generator=generator)
    p, q = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    rate = case.options["lr"] / 10  # some walk away with a rate that is made for a few steps
    lazy, eager = case.mine([p], unspecified="zero", lr=rate), case.reference([q], lr=rate)
    used = set()
    for _ in range(STEPS):
        grad = torch.randn(6, 4, dtype=torch.float64, generator=generator)
        some = torch.rand(6, 1, generator=generator) < chance.choice((0.1, 0.3, 0.6))
        way = chance.choice(list(WAYS))
        used.add(way)
        grad = torch.where(some, grad, 0) * (way != "nothing")
        mg.attach_gradient(p, WAYS[way](grad))
        q.grad = grad
        lazy.step()
        eager.step()
        lazy.zero_grad()
    assert used == {*WAYS}
    assert q.isfinite().all()
    lazy.flush()
    torch.testing.assert_close(p.detach(), q.detach(), rtol=100 * exactness(case), atol=100 * exactness(case))
