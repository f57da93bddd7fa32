"""SparseAdam is PyTorch's, duplicates merged, with epsilon where it is there."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import maskgrad as mg
from tests.unit.optim.suite.behind import SCALES, assert_as_near_as_rounding, signed

OPTIONS: dict[str, dict[str, Any]] = {
    "": {"betas": (0.7, 0.95)}, "usual betas": {}, "maximize": {"maximize": True, "eps": 1e-4},
}  # fmt: skip


def test_it_is_that_of_torch() -> None:
    start = torch.randn(9, 2)
    p, q = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    a, b = mg.optim.SparseAdam([p], lr=0.1), torch.optim.SparseAdam([q], lr=0.1)
    for step in range(9):
        index = torch.tensor([[step % 9, (2 * step) % 9, step % 9]])
        p.grad = torch.sparse_coo_tensor(index, torch.randn(3, 2), (9, 2), check_invariants=True)
        q.grad = p.grad.clone()
        a.step()
        b.step()
        if step == 4:  # in mid-run, both ways
            state = copy.deepcopy(a.state_dict()), copy.deepcopy(b.state_dict())
            a.load_state_dict(state[1])
            b.load_state_dict(state[0])
    torch.testing.assert_close(p, q)


@pytest.mark.parametrize("name", OPTIONS)
def test_gradients_as_small_as_epsilon(name: str) -> None:
    for scale in SCALES:
        for dtype in (torch.float32, torch.float64):
            found = []
            for library in (mg.optim, torch.optim):
                p = nn.Parameter(torch.zeros(6, 2, dtype=dtype))
                optimizer = library.SparseAdam([p], lr=1.0, **OPTIONS[name])
                for gradient in signed(scale, dtype):
                    p.grad = gradient.to_sparse(1)
                    optimizer.step()
                found.append(p.detach())
            assert_as_near_as_rounding(*found)


def test_three_steps_written_out() -> None:
    p = nn.Parameter(torch.zeros(1))
    optimizer = mg.optim.SparseAdam([p], lr=1.0)
    for _ in range(3):
        p.grad = torch.sparse_coo_tensor([[0]], torch.tensor([1e-8]), (1,), check_invariants=True)
        optimizer.step()
    m, v, expected = 0.0, 0.0, 0.0
    for t in (1, 2, 3):
        m, v = 0.9 * m + 0.1 * 1e-8, 0.999 * v + 0.001 * 1e-16
        expected -= (1 - 0.999**t) ** 0.5 / (1 - 0.9**t) * m / (v**0.5 + 1e-8)
    assert p.item() == pytest.approx(expected, rel=1e-5) == pytest.approx(-0.12535, rel=1e-4)


def test_halves_are_computed_in_single_precision_and_rounded_once() -> None:
    for scale in (1e-2, 1e-8):
        p, q = (nn.Parameter(torch.zeros(6, 2, dtype=dtype)) for dtype in (torch.bfloat16, torch.float32))
        mine, theirs = mg.optim.SparseAdam([p], lr=1.0), torch.optim.SparseAdam([q], lr=1.0)
        for gradient in signed(scale, torch.bfloat16):
            p.grad, q.grad = gradient.to_sparse(1), gradient.float().to_sparse(1)
            mine.step()
            theirs.step()
        torch.testing.assert_close(p.float(), q, rtol=0, atol=0.03 * float(q.detach().abs().max()))
