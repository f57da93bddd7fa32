"""What is kept about dense parameters from step to step, and when it is looked at again; see test_lives.py, too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import maskgrad as mg
from maskgrad.optim.optimizer import MaskedOptimizer
from tests.unit.optim.optimizers import bits, give, twins

SHAPES = [(4, 3), (5,), (), (2, 3, 2), (0, 3)]


def run(a: Any, b: Any, mine: list[Any], theirs: list[Any], steps: int = 3) -> None:
    for _ in range(steps):
        give(mine, theirs)
        a.step()
        b.step()
    for p, q in zip(mine, theirs, strict=True):
        assert torch.equal(bits(p), bits(q))


def adam(params: Any, **options: Any) -> MaskedOptimizer:
    return mg.optim.Adam(params, lr=0.1, **options)


def torch_adam(params: Any, **options: Any) -> torch.optim.Adam:
    return torch.optim.Adam(params, lr=0.1, fused=True, **options)


def test_counts_are_those_of_the_optimizer() -> None:
    """They are raised where they lie: who holds one of them sees it."""
    mine, reference = twins(SHAPES)
    optimizer = adam(mine)
    give(mine, reference)
    optimizer.step()
    held = optimizer.state[mine[1]]["step"]
    for step in range(2, 6):
        give(mine, reference)
        optimizer.step()
        assert held is optimizer.state[mine[1]]["step"]
        assert held == step


def test_memory_that_is_turned_in_place() -> None:
    p, q = (nn.Parameter(torch.arange(9.0).view(3, 3)) for _ in range(2))
    a, b = adam([p]), torch.optim.Adam([q], lr=0.1, foreach=False)
    for step in range(6):
        if step == 3:
            with torch.no_grad():
                for x in (p, q):
                    x.t_()
        p.grad = torch.randn(3, 3)
        q.grad = p.grad.clone()
        a.step()
        b.step()
        torch.testing.assert_close(p, q)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_rounded_once(dtype: torch.dtype) -> None:
    mine, reference = twins([(40,), (3, 5)], dtype)
    wide = [nn.Parameter(q.detach().float()) for q in reference]
    a, b = adam(mine), torch_adam(wide)
    for p, q in zip(mine, wide, strict=True):
        p.grad = torch.randn_like(p)
        q.grad = p.grad.float()
    a.step()
    b.step()
    for p, q in zip(mine, wide, strict=True):
        torch.testing.assert_close(p.float(), q.to(dtype).float(), rtol=torch.finfo(dtype).eps, atol=1e-3)


@pytest.mark.parametrize("name", ["SGD", "Adagrad", "Adam", "AdamW"])
def test_a_state_in_another_half_is_no_reason_to_stop(name: str) -> None:
    # PyTorch's fused loops count the step, and find the dtype then
    options: dict[str, Any] = {"lr": 0.1, **({"momentum": 0.9} if name == "SGD" else {})}
    key = {"SGD": "momentum_buffer", "Adagrad": "sum"}.get(name, "exp_avg")
    found = []
    for number in (1, 6):  # one look at each, and one at all
        params = [nn.Parameter(torch.ones(2, 2, dtype=torch.float16)) for _ in range(number)]
        optimizer = getattr(mg.optim, name)(params, **options)
        for step in range(2):
            for p in params:
                p.grad = torch.ones_like(p)
                if step:
                    optimizer.state[p][key] = optimizer.state[p][key].bfloat16()
            optimizer.step()
        found += [p.detach() for p in params]
    assert all(torch.equal(p, found[0]) for p in found)
    assert bool((found[0] < 0.95).all())


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
