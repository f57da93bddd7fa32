"""Attached gradients: stored, replaced, removed, refused early."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from maskgrad import attach_gradient
from maskgrad.masked_tensor import masked
from maskgrad.optim import attached_gradient


def test_attaching_replaces_and_none_removes() -> None:
    p = nn.Parameter(torch.ones(2))
    attach_gradient(p, torch.ones(2))
    attach_gradient(p, torch.zeros(2) + p * 0)
    attached = attached_gradient(p)
    assert isinstance(attached, Tensor)
    assert attached.tolist() == [0.0, 0.0]
    assert not attached.requires_grad
    attach_gradient(p, None)
    attach_gradient(p, None)
    assert attached_gradient(p) is None


def test_gradients_that_do_not_fit_are_refused_at_once() -> None:
    p = nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match=r"gradient of the parameter has shape \(3,\)"):
        attach_gradient(p, masked(torch.ones(3), torch.tensor([True, False, True])))
    with pytest.raises(TypeError, match="must be a tensor or a MaskedTensor, got list"):
        attach_gradient(p, [1.0, 2.0])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"dtype torch\.int64"):
        attach_gradient(p, torch.tensor([1, 2]))
    assert attached_gradient(p) is None
