"""Segments to try kernels on, and what they should give: each segment by itself, in PyTorch, in float64."""

from __future__ import annotations

import itertools

import torch

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
ROUNDING = {torch.float64: 1e-12, torch.float32: 4e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
LENGTHS = [[3], [5, 1, 0, 31, 32, 33, 2, 0], [80, 3, 64], [], [0, 0]]


def pointers_of(lengths):
    return torch.tensor([0, *lengths], dtype=torch.int64).cumsum(0)


def orders(number):
    return [None, torch.randperm(number)]


def parts(values, pointers, order):
    """The entries of each segment, one tensor for each."""
    gathered = values if order is None else values[order]
    return [gathered[a:b] for a, b in itertools.pairwise(pointers.tolist())]


def expected(function, nothing, values, pointers, order):
    """``function`` of each segment, ``nothing`` for an empty one, (g, *dense), with a gradient."""
    found = [
        function(p) if len(p) else p.new_full(p.shape[1:], nothing) for p in parts(values, pointers, order)
    ]
    return torch.stack(found) if found else values.new_zeros((0, *values.shape[1:]))


def close(found, wanted, dtype):
    tolerance = ROUNDING[dtype]
    torch.testing.assert_close(
        found.double(), wanted.double(), rtol=tolerance, atol=tolerance * 10, equal_nan=True
    )


def gradients_agree(forward, wanted, values):
    """Values and gradients of ``forward`` on ``values``, against ``wanted`` on the same in float64."""
    ours, theirs = values.clone().requires_grad_(), values.double().requires_grad_()
    result, model = forward(ours), wanted(theirs)
    assert result.shape == model.shape
    assert result.dtype == torch.promote_types(values.dtype, torch.float32)
    close(result, model, torch.float32 if values.dtype != torch.float64 else torch.float64)
    grad = torch.randn(result.shape, dtype=result.dtype)
    (found,) = torch.autograd.grad(result, ours, grad)
    assert found.dtype == values.dtype
    slope = torch.zeros_like(theirs)
    if model.requires_grad:
        slope = torch.autograd.grad(model, theirs, grad.double(), allow_unused=True)[0]
    close(found, slope if slope is not None else torch.zeros_like(theirs), values.dtype)
