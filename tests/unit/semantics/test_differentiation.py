"""torch.autograd.grad and backward on masked outputs, inputs and cotangents."""

from __future__ import annotations

import pytest
import torch

import maskgrad as mg
from tests.poison import assert_entries, leaf, nan, on


def test_the_gradient_of_a_masked_input_has_its_pattern() -> None:
    x = mg.masked(leaf(1.0, 2.0, nan), on(1, 1, 0))
    (grad,) = torch.autograd.grad(x * x, x, torch.tensor([1.0, 10.0, nan], dtype=torch.float64))
    assert grad.tolist() == [2.0, 40.0, None]
    stored = mg.masked(torch.ones(2, 2), on([1, 0], [0, 1])).to_sparse().requires_grad_()
    (grad,) = torch.autograd.grad((stored * stored).sum(), stored)
    assert (grad.layout, grad.tolist()) == (torch.sparse_coo, [[2.0, None], [None, 2.0]])


def test_one_gradient_for_each_cotangent() -> None:
    leaf = torch.tensor([1.0, nan, 3.0], dtype=torch.float32, requires_grad=True)
    x = mg.masked(leaf, on(1, 0, 1))
    y = x * x
    cotangents = torch.eye(3)
    for given in (cotangents, mg.masked(cotangents, on(1, 0, 1).expand(3, 3))):
        (found,) = torch.autograd.grad(y, x, given, retain_graph=True, is_grads_batched=True)
        assert_entries(found, [[2.0, None, 0.0], [0.0, None, 0.0], [0.0, None, 6.0]], torch.float32)
    (second,) = torch.autograd.grad(y, x, cotangents, True, False, True, False, True)
    assert second.mask.shape == second.shape == (3, 3)
    s = x.to_sparse().detach().requires_grad_()
    with pytest.raises(mg.UnsupportedOperationError, match="call it once per cotangent"):
        torch.autograd.grad(s * 2, s, torch.ones(3, 2), is_grads_batched=True)


def test_what_is_unspecified_in_outputs_or_cotangents_sends_nothing_back() -> None:
    x = leaf(1.0, 2.0, 3.0)  # torch asks outputs and inputs alone whether they are tensors of its own
    y, seed = mg.masked(x), mg.masked(torch.tensor([1.0, nan, 1.0], dtype=torch.float64), on(1, 0, 1))
    (grad,) = torch.autograd.grad(y * y, x, seed)
    assert grad.tolist() == [2.0, 0.0, 6.0]
    x = torch.tensor(2.0, requires_grad=True)
    (grad,) = torch.autograd.grad(mg.masked(x, torch.tensor(False)), x)
    assert grad == 0
