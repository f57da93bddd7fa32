"""mg.nn's tables are torch.nn's with a sparse gradient; what they add is in test_lookup.py."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import nn

import maskgrad as mg

KINDS = pytest.mark.parametrize("kind", ["Embedding", "EmbeddingBag"])
NOT_SPARSE = [
    ("Embedding", {"scale_grad_by_freq": True}),
    ("EmbeddingBag", {"scale_grad_by_freq": True}),
    ("EmbeddingBag", {"mode": "max"}),
]


@KINDS
def test_the_signature_is_pytorchs(kind: str) -> None:
    ours, theirs = (inspect.signature(getattr(library, kind).__init__) for library in (mg.nn, nn))
    assert list(ours.parameters) == list(theirs.parameters)


@pytest.mark.parametrize(("kind", "options"), NOT_SPARSE)
def test_the_gradient_is_sparse_where_pytorch_has_one(kind: str, options: dict[str, Any]) -> None:
    table = getattr(mg.nn, kind)
    assert table(3, 2).sparse
    assert table.from_pretrained(torch.ones(3, 2)).sparse
    assert not table(3, 2, sparse=False).sparse
    assert not table(3, 2, **options).sparse
    (name,) = options
    with pytest.raises(ValueError, match=rf"sparse=True is not available with {name}=.*use sparse=False"):
        table(3, 2, sparse=True, **options)


@KINDS
def test_values_gradients_and_states_are_pytorchs(kind: str) -> None:
    ours, theirs = getattr(mg.nn, kind)(5, 2), getattr(nn, kind)(5, 2)
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    indices = torch.tensor([[0, 3], [3, 1]])
    assert isinstance(ours, getattr(nn, kind))  # DistributedDataParallel asks
    for table in (ours, theirs):
        table(indices).square().sum().backward()
    assert torch.equal(ours(indices), theirs(indices))
    assert ours.weight.grad.layout is torch.sparse_coo
    assert torch.equal(ours.weight.grad.to_dense(), theirs.weight.grad)


@KINDS
def test_frozen_shared_and_padded(kind: str) -> None:
    weight, made = torch.randn(5, 2), getattr(mg.nn, kind)
    table = made.from_pretrained(weight, padding_idx=-1)
    assert not table.weight.requires_grad
    assert table.weight.data_ptr() == weight.data_ptr()
    assert table.padding_idx == 4
    assert torch.equal(made(3, 2, padding_idx=1).weight[1], torch.zeros(2))
    with pytest.raises(ValueError, match=r"embeddings must have two dimensions.*got shape \(4,\)"):
        made.from_pretrained(torch.ones(4))
