"""Sparse tensors of torch in and out: merging, trust, gradients in their own layout, second derivatives refused."""

from __future__ import annotations

import pytest
import torch

import maskgrad as mg
from tests.poison import leaf


def test_duplicates_are_added_up_halves_in_float32() -> None:
    t = torch.sparse_coo_tensor(
        torch.zeros(1, 4096, dtype=torch.int64), torch.ones(4096, dtype=torch.half), (2,)
    )
    x = mg.from_sparse(t)
    assert x.tolist() == [4096.0, None]
    assert x.dtype == torch.half


def test_the_gradient_of_a_merged_leaf_is_that_of_each_duplicate() -> None:
    values = leaf(1, 2, 3)
    t = torch.sparse_coo_tensor(torch.tensor([[1, 0, 1]]), values, (3,))
    (mg.from_sparse(t) ** 2).sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [8, 4, 8]


def test_a_flag_that_lies_is_not_believed() -> None:
    t = torch.sparse_coo_tensor(torch.tensor([[1, 0, 1]]), torch.ones(3), (3,), is_coalesced=True)
    assert mg.from_sparse(t).tolist() == [1.0, 2.0, None]


def test_a_stored_zero_and_a_cancelled_sum_stay_specified() -> None:
    t = torch.sparse_coo_tensor(torch.tensor([[0, 1, 1]]), torch.tensor([0.0, 1.0, -1.0]), (3,))
    x = mg.from_sparse(t)
    assert x.tolist() == [0.0, 0.0, None]
    assert x.mean().item() == 0
    assert x.to_sparse_tensor()._nnz() == 2


def test_indices_out_of_range_are_named() -> None:
    t = torch.sparse_coo_tensor(torch.tensor([[0, 7]]), torch.ones(2), (3,), check_invariants=False)
    with pytest.raises(IndexError, match="between 0 and 2 in dimension 0, found index 7"):
        mg.from_sparse(t)


@pytest.mark.parametrize("bad", [torch.ones(2), 3, None])
def test_only_sparse_tensors_are_read(bad: object) -> None:
    with pytest.raises(TypeError, match=r"must be a sparse torch.Tensor.*use mg.masked"):
        mg.from_sparse(bad)  # type: ignore[arg-type]


def test_hybrid_tensors_of_different_ranks_are_not_taken_for_one_pattern() -> None:
    rows = mg.from_sparse(torch.sparse_coo_tensor([[0, 2]], torch.ones(2, 3), (3, 3)))
    cubes = mg.from_sparse(torch.sparse_coo_tensor([[0, 2]], torch.ones(2, 3, 3), (3, 3, 3)))
    assert (rows + cubes).tolist() == (rows.to_dense() + cubes.to_dense()).tolist()


def test_what_is_trusted_is_looked_at_by_nobody() -> None:
    t = torch.sparse_csr_tensor([0, 2, 1], [0, 1], torch.ones(2), (2, 3), check_invariants=False)
    with pytest.raises(ValueError, match="must ascend from 0 to the number of stored positions, 2"):
        mg.from_sparse(t)
    mg.from_sparse(t, check_invariants=False)
