"""What is kept about dense parameters from step to step, and when it is looked at again; see test_lives.py, too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import maskgrad as mg
from tests.unit.optim.optimizers import bits, give


def run(a: Any, b: Any, mine: list[Any], theirs: list[Any], steps: int = 3) -> None:
    for _ in range(steps):
        give(mine, theirs)
        a.step()
        b.step()
    for p, q in zip(mine, theirs, strict=True):
        assert torch.equal(bits(p), bits(q))


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
@pytest.mark.parametrize("shape", [(100, 4), (25, 4), (4, 50)])
def test_a_parameter_that_changes_its_shape_in_the_same_memory(kind: str, shape: tuple[int, int]) -> None:
    """Neither its states nor its gradient fit then: nobody may run past their ends."""
    memory = torch.zeros(100, 4)
    for late in (False, True):
        p = nn.Parameter(memory[:50])
        optimizer = getattr(mg.optim, kind)([p], lr=0.1)
        for _ in range(2):
            p.grad = torch.ones(50, 4)
            optimizer.step()
        p.data = torch.as_strided(memory, shape, (shape[1], 1))
        if late:
            p.grad = None
            p.grad = torch.ones(shape)
        if late and kind == "SGD":  # it has no state
            optimizer.step()
            continue
        before = memory.clone()
        with pytest.raises(ValueError, match=r"shape \(50, 4\)"):
            optimizer.step()
        assert torch.equal(memory, before)
