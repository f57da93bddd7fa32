"""Sparse layouts of several dimensions, indexed, against the Boolean mask; refused writes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import maskgrad as mg
from maskgrad.errors import UnsupportedLayoutError
from tests.poison import nan

SHAPE = (2, 3, 4)
PARTS = (1, -1, slice(None), slice(0, 2), None, Ellipsis, torch.tensor([0, 1]), torch.tensor(1))


def entries(shape: tuple[int, ...]) -> mg.MaskedTensor:
    mask = torch.rand(shape) < 0.5
    return mg.masked(torch.where(mask, torch.randn(shape), nan), mask)


def hybrid(sparse_dim: int) -> mg.MaskedTensor:
    places = (torch.rand(SHAPE[:sparse_dim]) < 0.6).nonzero().T
    values = torch.randn(places.shape[1], *SHAPE[sparse_dim:])
    return mg.from_sparse(torch.sparse_coo_tensor(places, values, SHAPE, check_invariants=True))


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor):
        assert torch.allclose(found, expected)
        return
    whole = found if found.layout == torch.strided else found.to_dense()
    assert torch.equal(whole.mask, expected.mask)
    assert torch.allclose(whole.filled(0), expected.filled(0))


@pytest.mark.parametrize("sparse_dim", [1, 2, 3])
def test_every_index_of_up_to_three_parts(sparse_dim: int) -> None:
    stored = hybrid(sparse_dim)
    dense = stored.to_dense()
    for index in itertools.chain(*(itertools.product(PARTS, repeat=length) for length in (1, 2, 3))):
        if sum(part is Ellipsis for part in index) > 1:
            continue
        try:
            found = stored[index]
        except UnsupportedLayoutError:
            continue
        except IndexError:
            with pytest.raises(IndexError):
                dense[index]
            continue
        assert_same(found, dense[index])


def test_sparse_entries_are_not_assigned_to_a_mask() -> None:
    x = mg.masked(torch.zeros(3, 3))
    with pytest.raises(mg.errors.UnsupportedLayoutError, match=r"assigning .* x\.to_dense\(\)"):
        x[...] = mg.from_sparse(torch.eye(3).to_sparse())
    assert x.tolist() == torch.zeros(3, 3).tolist()


def test_a_position_outside_is_an_error() -> None:
    for place in (-4, 3):
        with pytest.raises(IndexError, match="positions of dimension 0 lie between -3 and 2"):
            entries((3, 4)).to_sparse()[torch.tensor([0, place])]


def test_batches_of_stored_matrices_are_broadcast() -> None:
    for left, right in (((2,), ()), ((), (2,)), ((1,), (2,)), ((2,), (2,))):
        x, y = entries((*left, 3, 4)), entries((*right, 4, 5))
        for other, same in ((y.to_sparse(), y), (y, y), (y.filled(1.0),) * 2):
            assert_same(torch.matmul(x.to_sparse(), other), torch.matmul(x, same))


def test_reductions_of_all_of_a_vector_and_deviations_of_equal_entries() -> None:
    leaf = torch.tensor([2.0, 5.0, 5.0, 1.0], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([False, True, True, False])
    for x in (mg.masked(leaf, mask), mg.masked(leaf, mask).to_sparse()):
        assert (x.argmax().item(), x.max(0).indices.item(), x.max().item()) == (1, 1, 5.0)
        found = torch.stack([x, x]).std(1, correction=0)
        assert found.to_dense().filled(9).tolist() == [0, 0]
        assert not torch.autograd.grad(found.to_dense().filled(0).sum(), leaf)[0].count_nonzero()


def test_a_vector_is_read_at_stored_positions() -> None:
    labels = mg.masked(torch.tensor([[2, 7], [7, 1]]), torch.eye(2).bool()).to_sparse()
    found = torch.tensor([5.0, 6.0, 7.0])[labels,]  # type: ignore[index]
    assert (found.layout, found.tolist()) == (torch.sparse_coo, [[7.0, None], [None, 6.0]])
    with pytest.raises(TypeError, match="read entries of a plain vector"):
        torch.eye(3)[labels,]  # type: ignore[index]


def test_rows_and_entries_meet_and_are_asked_by_name() -> None:
    """One operand has dense rows, the other single entries."""
    rows = mg.from_sparse(torch.sparse_coo_tensor([[0, 2]], torch.rand(2, 4) + 1, (3, 4)))
    single = mg.masked(torch.rand(3, 4) + 1, torch.rand(3, 4) < 0.6).to_sparse()
    for function in (torch.mul, torch.add, torch.maximum):
        assert_same(function(rows, single), function(rows.to_dense(), single.to_dense()))
    asked = torch.is_complex(input=rows), torch.is_floating_point(input=single), torch.numel(input=rows)
    assert (*asked, torch.is_same_size(rows, single)) == (False, True, 12, True)
