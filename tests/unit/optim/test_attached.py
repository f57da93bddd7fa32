"""Attached gradients: stored, replaced, removed, refused early."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from maskgrad import attach_gradient
from maskgrad.masked_tensor import masked
from maskgrad.optim import Adagrad, attached_gradient
from tests.unit.optim.kinds import every_kind


@every_kind
def test_a_step_reads_what_was_attached(kind: Callable[[Tensor], Any]) -> None:
    p = nn.Parameter(torch.ones(2, 4))
    assert attached_gradient(p) is None
    attach_gradient(p, kind(torch.tensor([[0.0, 0, 1, 2], [3, 4, 0, 0]])))
    Adagrad([p], lr=0.5).step()
    torch.testing.assert_close(p.detach(), torch.tensor([[1.0, 1, 0.5, 0.5], [0.5, 0.5, 1, 1]]))


def test_attaching_replaces_and_none_removes() -> None:
    p = nn.Parameter(torch.ones(2))
    attach_gradient(p, torch.ones(2))
    second = torch.zeros(2)
    attach_gradient(p, second)
    attached = attached_gradient(p)
    assert isinstance(attached, Tensor)
    assert attached.data_ptr() == second.data_ptr()
    attach_gradient(p, None)
    attach_gradient(p, None)
    assert attached_gradient(p) is None


def test_an_attached_gradient_is_detached() -> None:
    p = nn.Parameter(torch.ones(2))
    attach_gradient(p, p * 2)
    attached = attached_gradient(p)
    assert isinstance(attached, Tensor)
    assert not attached.requires_grad


def test_a_copy_of_the_parameter_has_no_gradient() -> None:
    p = nn.Parameter(torch.ones(2))
    attach_gradient(p, masked(torch.ones(2), torch.tensor([True, False])))
    assert attached_gradient(copy.deepcopy(p)) is None


def test_what_does_not_fit_is_refused_at_once() -> None:
    p = nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match=r"gradient of the parameter has shape \(3,\)"):
        attach_gradient(p, masked(torch.ones(3), torch.tensor([True, False, True])))
    with pytest.raises(TypeError, match="must be a tensor or a MaskedTensor, got list"):
        attach_gradient(p, [1.0, 2.0])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"dtype torch\.int64"):
        attach_gradient(p, torch.tensor([1, 2]))
    assert attached_gradient(p) is None
