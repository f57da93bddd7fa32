"""Gated linear units: an entry and its gate."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import maskgrad as mg


def test_an_infinite_entry_without_its_gate_spoils_nothing() -> None:
    x = torch.tensor([float("inf"), 2.0, 0.0, 0.0], requires_grad=True)
    result = F.glu(mg.masked(x, torch.tensor([True, True, False, True])))
    (grad,) = torch.autograd.grad(result.filled(0.0).sum(), x)
    assert grad.tolist() == [0.0, 0.5, 0.0, 0.5]
