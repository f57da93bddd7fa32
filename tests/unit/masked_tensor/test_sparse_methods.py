"""The methods of torch's sparse tensors, beside torch's own, with garbage under the mask."""

import math

import pytest
import torch
from torch import Tensor

import maskgrad as mg


@pytest.mark.parametrize("listed", [1, 2, 3, 4])
def test_how_many_dimensions_are_listed(listed: int) -> None:
    mask = torch.tensor([1, 0, 1, 1]).bool().reshape(4, 1, 1, 1).expand(4, 2, 3, 2)
    values = torch.arange(1.0, 49).reshape(4, 2, 3, 2)
    x = mg.masked(torch.where(mask, values, math.nan), mask)
    expected = torch.where(mask, values, 0).to_sparse(listed)
    for source in (x, x.to_sparse(), x.to_sparse(2)):
        found = source.to_sparse(listed)
        assert found.indices().equal(expected.indices())
        assert found.values().equal(expected.values())
        assert (found.sparse_dim(), found.dense_dim()) == (listed, 4 - listed)
        assert found.coalesce().values() is found.values()
        assert found.is_coalesced()
        assert found.to_sparse(listed) is found
        assert source.to_sparse(dense_dim=4 - listed).values().equal(expected.values())


def test_gradients_pass_entry_by_entry() -> None:
    leaf = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True], [False], [True]])
    weight = torch.randn(2, 2, dtype=torch.float64)

    def values(t: Tensor) -> Tensor:
        return mg.masked(t, mask).to_sparse(1).values() * weight

    assert torch.autograd.gradcheck(values, (leaf,))
    values(leaf).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.equal(torch.stack([weight[0], torch.zeros(2), weight[1]]))


def test_what_does_not_fit_is_refused() -> None:
    mask = torch.tensor([[1, 0, 1], [1, 0, 1], [0, 0, 0], [0, 0, 0]]).bool()
    x = mg.masked(torch.where(mask, 1.0, math.nan), mask)
    with pytest.raises(ValueError, match=r"partially specified, the first at \(0,\); use x.to_sparse\(\)"):
        x.to_sparse(1)
    for wrong in (0, 3, -1):
        with pytest.raises(ValueError, match="sparse_dim must be from 1 to 2"):
            x.to_sparse(wrong)
    with pytest.raises(ValueError, match="dense_dim must be from 0 to 0"):
        x.to_sparse_csr(dense_dim=1)
    with pytest.raises(ValueError, match="pass dense_dim= instead"):
        x.to_sparse(2, layout=torch.sparse_csr)
    with pytest.raises(ValueError, match="not both"):
        x.to_sparse(2, dense_dim=0)
    with pytest.raises(
        RuntimeError, match=r"needs layout torch\.sparse_coo, found torch\.strided; use x\.to_sparse"
    ):
        x.coalesce()
    with pytest.raises(RuntimeError, match=r"or x\.compressed\(\)"):
        x.values()
    assert (x.sparse_dim(), x.dense_dim()) == (0, 2)
