"""mg.nn.EmbeddingBag is torch.nn.EmbeddingBag with a sparse gradient; what it adds is in test_lookup.py."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

import maskgrad as mg


def test_the_signature_is_pytorchs() -> None:
    ours, theirs = (inspect.signature(kind.__init__) for kind in (mg.nn.EmbeddingBag, nn.EmbeddingBag))
    assert list(ours.parameters) == list(theirs.parameters)


def test_the_gradient_is_sparse_where_pytorch_has_one() -> None:
    assert mg.nn.EmbeddingBag(3, 2).sparse
    assert not mg.nn.EmbeddingBag(3, 2, sparse=False).sparse
    assert not mg.nn.EmbeddingBag(3, 2, scale_grad_by_freq=True).sparse
    assert mg.nn.EmbeddingBag.from_pretrained(torch.ones(3, 2)).sparse
    with pytest.raises(
        ValueError, match=r"sparse=True is not available with scale_grad_by_freq=True.*use sparse=False"
    ):
        mg.nn.EmbeddingBag(3, 2, sparse=True, scale_grad_by_freq=True)
    assert not mg.nn.EmbeddingBag(3, 2, mode="max").sparse
    with pytest.raises(ValueError, match='sparse=True is not available with mode="max"'):
        mg.nn.EmbeddingBag(3, 2, sparse=True, mode="max")


def test_values_and_gradients_are_pytorchs() -> None:
    weight, indices = torch.randn(5, 2), torch.tensor([[0, 3], [3, 1]])
    ours, theirs = (
        kind.from_pretrained(weight.clone(), freeze=False, mode="sum")
        for kind in (mg.nn.EmbeddingBag, nn.EmbeddingBag)
    )
    assert isinstance(ours, nn.EmbeddingBag)  # DistributedDataParallel asks
    for table in (ours, theirs):
        table(indices).square().sum().backward()
    assert torch.equal(ours(indices), theirs(indices))
    assert ours.weight.grad is not None
    assert ours.weight.grad.layout is torch.sparse_coo
    assert torch.equal(ours.weight.grad.to_dense(), theirs.weight.grad)


def test_frozen_shared_and_padded() -> None:
    weight = torch.randn(5, 2)
    table = mg.nn.EmbeddingBag.from_pretrained(weight, padding_idx=-1)
    assert not table.weight.requires_grad
    assert table.weight.data_ptr() == weight.data_ptr()
    assert table.padding_idx == 4
    assert torch.equal(mg.nn.EmbeddingBag(3, 2, padding_idx=1).weight[1], torch.zeros(2))
    made = mg.nn.EmbeddingBag(3, 2, device="meta", dtype=torch.bfloat16)
    assert (made.weight.device.type, made.weight.dtype) == ("meta", torch.bfloat16)


def test_a_table_must_have_rows_and_columns() -> None:
    with pytest.raises(ValueError, match=r"embeddings must have two dimensions.*got shape \(4,\)"):
        mg.nn.EmbeddingBag.from_pretrained(torch.ones(4))


def test_state_dicts_are_exchanged_with_pytorchs() -> None:
    ours, theirs = mg.nn.EmbeddingBag(4, 2), nn.EmbeddingBag(4, 2)
    ours.load_state_dict(theirs.state_dict())
    assert torch.equal(ours.weight, theirs.weight)
    theirs.load_state_dict(ours.state_dict())
