"""Sparse tensors of torch in and out: merging, trust, gradients in their own layout, second derivatives refused."""

from __future__ import annotations

import math

import pytest
import torch

import maskgrad as mg
from tests.poison import leaf


def test_duplicates_are_added_up() -> None:
    """Also those of a tensor that says it has none; a stored zero and a sum of zero stay specified."""
    values = leaf(1.0, 0.0, -1.0)
    t = torch.sparse_coo_tensor(torch.tensor([[1, 0, 1]]), values, (3,), is_coalesced=True)
    x = mg.from_sparse(t)
    assert x.tolist() == [0.0, 0.0, None]
    assert x.to_sparse_tensor()._nnz() == 2
    (x * torch.tensor([5.0, 7.0, 9.0])).sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [7.0, 5.0, 7.0]
    halves = torch.sparse_coo_tensor(torch.zeros(1, 4096).long(), torch.ones(4096).half(), (2,))
    assert mg.from_sparse(halves).tolist() == [4096.0, None]  # added up in float32


def test_the_duplicates_of_a_scalar_are_merged() -> None:
    twice = torch.sparse_coo_tensor(torch.empty(0, 2, dtype=torch.int64), torch.tensor([1.0, 2.0]), ())
    leaf = twice.clone().requires_grad_()
    mg.sparse.coalesce(leaf, "mean").to_dense().backward()
    assert leaf.grad.to_dense().item() == 0.5  # what each of the two entries receives
    assert mg.from_sparse(twice).tolist() == 3
    nothing = mg.from_sparse(torch.sparse_coo_tensor(()))
    assert (nothing.tolist(), nothing.to_sparse_tensor().to_dense().item()) == (None, 0)


@pytest.mark.parametrize("bad", [torch.ones(2), 3, None])
def test_only_sparse_tensors_are_read(bad: object) -> None:
    with pytest.raises(TypeError, match=r"must be a sparse torch.Tensor.*use mg.masked"):
        mg.from_sparse(bad)  # type: ignore[arg-type]


def test_hybrid_tensors_of_different_ranks_are_not_taken_for_one_pattern() -> None:
    rows = mg.from_sparse(torch.sparse_coo_tensor([[0, 2]], torch.ones(2, 3), (3, 3)))
    cubes = mg.from_sparse(torch.sparse_coo_tensor([[0, 2]], torch.ones(2, 3, 3), (3, 3, 3)))
    assert (rows + cubes).tolist() == (rows.to_dense() + cubes.to_dense()).tolist()


def test_tensors_are_checked_unless_they_are_trusted() -> None:
    t = torch.sparse_coo_tensor(torch.tensor([[0, 7]]), torch.ones(2), (3,), check_invariants=False)
    with pytest.raises(IndexError, match="between 0 and 2 in dimension 0, found index 7"):
        mg.from_sparse(t)
    t = torch.sparse_csr_tensor([0, 2, 1], [0, 1], torch.ones(2), (2, 3), check_invariants=False)
    with pytest.raises(ValueError, match="must ascend from 0 to the number of stored positions, 2"):
        mg.from_sparse(t)
    mg.from_sparse(t, check_invariants=False)


@pytest.mark.parametrize("listed", [1, 2, 4])
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


def test_scalars() -> None:
    """Of one number, or of none with NaN in its place; reading: tests/unit/patterns/suite."""
    one, none = (mg.masked(torch.tensor(n), torch.tensor(n == n)).to_sparse() for n in (2.0, math.nan))
    for x, number in ((one, 2.0), (none, None)):
        for ones in (torch.ones(3), mg.masked(torch.ones(3)).to_sparse()):
            assert (x * ones).tolist() == [number] * 3
        assert torch.stack([x] * 2).tolist() == [number] * 2
    assert f"{one:.2f}" == "2.00"
    assert repr(none) == "masked(--, layout=torch.sparse_coo)"
    one.flip(0).mul_(3)  # which has memory of its own
    assert one.item() == 2
