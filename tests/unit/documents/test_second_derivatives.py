"""First and second derivatives by finite differences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention as module

import maskgrad as mg
from tests.unit.documents.rows import D, rows


def aggregated(x: Tensor) -> Tensor:
    ids = rows("gaps").ids
    kept = torch.where(ids >= 0, x, torch.nan)
    return torch.stack([mg.aggregate(kept * kept, how, ids) for how in ("token-mean", "seq-mean-token-mean")])


def there_and_back(x: Tensor) -> Tensor:
    ids = rows("gaps").ids
    z = mg.unpack_documents(torch.where(ids >= 0, x, torch.nan), segment_ids=ids)
    return mg.pack_documents((z * z).softmax(1) * z, segment_ids=ids).filled(0)


def attended(x: Tensor) -> Tensor:
    one = mg.from_lengths(x[None, None, :, :2], torch.tensor([len(x) - 1]), 2)
    flex_attention: Any = module.flex_attention
    found: Tensor = flex_attention(one, one * 2, one, lambda score, *_: torch.tanh(score)).filled(0)
    return found


@pytest.mark.parametrize("function", [aggregated, there_and_back, attended])
def test_derivatives_are_those_of_finite_differences(function: Any) -> None:
    x = torch.randn(rows("gaps").ids.shape, dtype=D, requires_grad=True)
    assert torch.autograd.gradcheck(function, x)
    assert torch.autograd.gradgradcheck(function, x)
