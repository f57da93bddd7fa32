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


def test_complex_means_without_nan() -> None:
    entries = torch.tensor([1 + 1j, complex("nan"), 3 + 0j])
    x = mg.from_sparse(torch.sparse_coo_tensor([[0, 1, 3]], entries, (5,)))
    assert torch.nanmean(x) == 2 + 0.5j
    assert torch.nanmean(x[:2]) == 1 + 1j


def test_sparse_entries_are_not_assigned_to_a_mask() -> None:
    x = mg.masked(torch.zeros(3, 3))
    with pytest.raises(mg.errors.UnsupportedLayoutError, match=r"assigning .* x\.to_dense\(\)"):
        x[...] = mg.from_sparse(torch.eye(3).to_sparse())
    assert x.tolist() == torch.zeros(3, 3).tolist()


@pytest.mark.parametrize("place", [-4, 3])
def test_a_position_outside_is_an_error(place: int) -> None:
    with pytest.raises(IndexError, match="positions of dimension 0 lie between -3 and 2"):
        entries((3, 4)).to_sparse()[torch.tensor([0, place])]


@pytest.mark.parametrize("batch", [(), (1,), (2,)])
def test_batches_of_stored_matrices_are_broadcast(batch: tuple[int, ...]) -> None:
    x, y = entries((2, 3, 4)), entries((*batch, 4, 5))
    assert_same(torch.matmul(x.to_sparse(), y.to_sparse()), torch.matmul(x, y))
    x, y = entries((*batch, 3, 4)), entries((2, 4, 5))
    assert_same(torch.matmul(x.to_sparse(), y.to_sparse()), torch.matmul(x, y))


def test_beta_zero_ignores_what_is_added_to() -> None:
    x, broken = entries((3, 4)), torch.full((3, 2), nan)
    found, expected = (torch.addmm(broken, y, torch.ones(4, 2), beta=0) for y in (x.to_sparse(), x))
    assert_same(found, expected)


@pytest.mark.parametrize("function", [torch.softmax, torch.log_softmax])
def test_softmax_of_integers_is_refused_in_the_words_of_torch(function: Any) -> None:
    with pytest.raises(NotImplementedError, match="not implemented for 'Long'"):
        function(mg.masked(torch.eye(3).long()).to_sparse(), 1)


def test_a_vector_is_read_at_stored_positions() -> None:
    labels = mg.masked(torch.tensor([[2, 7], [7, 1]]), torch.eye(2).bool()).to_sparse()
    found = torch.tensor([5.0, 6.0, 7.0])[labels,]  # type: ignore[index]
    assert (found.layout, found.tolist()) == (torch.sparse_coo, [[7.0, None], [None, 6.0]])
    with pytest.raises(TypeError, match="read entries of a plain vector"):
        torch.eye(3)[labels,]  # type: ignore[index]


@pytest.mark.parametrize("divided", [torch.split, torch.chunk, torch.tensor_split])
def test_a_dimension_may_be_named_by_its_place_among_the_arguments(divided: Any) -> None:
    x = entries((3, 4))
    for rest in ((2,), (2, 1)):
        for found, expected in zip(divided(x.to_sparse(), *rest), divided(x, *rest), strict=True):
            assert_same(found, expected)
