"""Gated linear units: an entry and its gate."""

from __future__ import annotations

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import maskgrad as mg

MASK = torch.tensor([[1, 0, 1, 1, 1, 0], [0, 0, 0, 1, 1, 1]]).bool()


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), float("-inf"), 1e38])
def test_an_entry_needs_its_gate(garbage: float) -> None:
    x = torch.randn(2, 6, dtype=torch.float64, requires_grad=True)
    dirty = torch.where(MASK, x, garbage).detach().requires_grad_()
    result = nn.GLU()(mg.masked(dirty, MASK))
    both = MASK[:, :3] & MASK[:, 3:]
    assert result.mask.equal(both)
    right = torch.where(both, F.glu(x), 0)
    torch.testing.assert_close(result.filled(0.0), right)
    (found,), (expected,) = (
        torch.autograd.grad(result.filled(0.0).sum(), dirty),
        torch.autograd.grad(right.sum(), x),
    )
    torch.testing.assert_close(found, expected)


def test_an_infinite_entry_without_its_gate_spoils_nothing() -> None:
    x = torch.tensor([float("inf"), 2.0, 0.0, 0.0], requires_grad=True)
    result = F.glu(mg.masked(x, torch.tensor([True, True, False, True])))
    (grad,) = torch.autograd.grad(result.filled(0.0).sum(), x)
    assert grad.tolist() == [0.0, 0.5, 0.0, 0.5]


def test_along_another_dimension() -> None:
    x = torch.randn(4, 3)
    mask = torch.rand(4, 3) < 0.5
    result = F.glu(mg.masked(x, mask), dim=0)
    assert result.mask.equal(mask[:2] & mask[2:])
    assert F.glu(mg.masked(torch.randn(0, 4), torch.ones(0, 4, dtype=torch.bool)), 0).shape == (0, 4)


def test_torchs_errors() -> None:
    for shape, dim, text in (
        ((3,), 0, "must be even"),
        ((), -1, "does not support scalars"),
        ((2,), 1, "out of range"),
    ):
        whole = mg.masked(torch.zeros(shape), torch.ones(shape, dtype=torch.bool))
        with pytest.raises((RuntimeError, IndexError), match=text):
            F.glu(whole, dim)


def test_second_derivatives() -> None:
    x = torch.randn(2, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: F.glu(mg.masked(x, MASK)).filled(0.0), (x,))
