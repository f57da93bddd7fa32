"""x.complete(dim): the slices that are specified in all of a dimension, on every layout."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from tests.poison import assert_entries, nan, poisoned

LAYOUTS = (torch.strided, torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)


def drawn(shape: tuple[int, ...], density: float) -> tuple[Tensor, Tensor, mg.MaskedTensor]:
    draw = torch.Generator().manual_seed(len(shape))
    values = torch.randn(shape, dtype=torch.float64, generator=draw)
    mask = torch.rand(shape, generator=draw) < density
    return values, mask, mg.masked(torch.where(mask, values, nan), mask)


@pytest.mark.parametrize("density", [0.0, 0.8, 1.0])
@pytest.mark.parametrize("dim", [0, 1, -1, (0, 1)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_slice_with_a_hole_is_left_out(
    layout: torch.layout, dim: int | tuple[int, ...], density: float
) -> None:
    values, mask, x = drawn((5, 4), density)
    stored = x if layout == torch.strided else x.to_sparse(layout=layout)
    whole = mask.movedim(dim, tuple(range(len(dim))) if isinstance(dim, tuple) else 0)
    lost = ~whole.flatten(0, len(dim) - 1 if isinstance(dim, tuple) else 0).all(0)
    kept = ~lost.expand_as(mask) if dim in (0, (0, 1)) else ~lost[:, None].expand_as(mask)
    y = stored.complete(dim)
    assert y.layout == (layout if layout == torch.strided else torch.sparse_coo)
    assert torch.equal(y.mask, kept)
    assert torch.equal(y.to_dense().filled(0.0), torch.where(kept, values, 0))


def test_nothing_is_written_to_the_operand() -> None:
    x = poisoned([[1.0, 2.0], [3.0, None]])
    x.complete(-1).add_(1)
    whole = mg.from_lengths(torch.ones(1, 2, 2), torch.tensor([1]), layout=torch.jagged)
    whole.complete(-1).add_(1)
    assert_entries(x, [[1.0, 2.0], [3.0, None]])
    assert_entries(whole.to_dense(), [[[1.0, 1.0], [None, None]]])


def test_layouts_that_hold_more_than_one_entry_at_a_place() -> None:
    x = mg.from_lengths(torch.arange(8.0).reshape(2, 2, 2), torch.tensor([2, 1]), layout=torch.jagged)
    assert x.complete(-1).layout == torch.jagged
    assert_entries(x.complete(-1).to_dense(), [[[0.0, 1.0], [2.0, 3.0]], [[4.0, 5.0], [None, None]]])
    assert_entries(x.complete(1), [[[0.0, 1.0], [2.0, 3.0]], [[None, None], [None, None]]])
    blocks = mg.from_sparse(torch.tensor([[1.0, 2.0, 0.0, 0.0], [3.0, 4.0, 5.0, 6.0]]).to_sparse_bsr((1, 2)))
    assert blocks.complete(1).layout == torch.sparse_coo
    assert_entries(blocks.complete(1).to_dense(), [[None] * 4, [3.0, 4.0, 5.0, 6.0]])
    hybrid = mg.from_sparse(torch.tensor([[1.0, 2.0], [0.0, 0.0]]).to_sparse(1))
    assert_entries(hybrid.complete(1).to_dense(), [[1.0, 2.0], [None, None]])
    assert_entries(hybrid.complete(0).to_dense(), [[None, None], [None, None]])


def test_a_scalar_is_complete_and_so_is_what_has_no_entries() -> None:
    assert_entries(mg.masked(torch.tensor(2.0)).complete(), 2.0)
    assert mg.masked(torch.zeros(2, 0)).complete(1).shape == (2, 0)
    with pytest.raises(IndexError, match="range"):
        poisoned([1.0]).complete(1)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_complete_is_compiled_and_vectorised(layout: torch.layout) -> None:
    x: Any = mg.from_lengths(torch.randn(3, 4, 2), torch.tensor([4, 0, 2]), layout=layout)
    y = torch.compile(lambda x: x.complete(-1) * 2, backend="eager", fullgraph=True)(x)
    assert y.layout == layout
    assert torch.equal(y.to_dense().filled(0.0), (x * 2).to_dense().filled(0.0))
    if layout == torch.strided:
        rows = torch.vmap(lambda x: x.complete(0).filled(0.0))(x)
        assert torch.equal(rows, x.complete(1).filled(0.0))
