"""x.complete(dim): the slices that are specified in all of a dimension, on every layout."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import maskgrad as mg
from tests.poison import assert_entries, nan, poisoned

LAYOUTS = (torch.strided, torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)


@pytest.mark.parametrize("density", [0.0, 0.8, 1.0])
@pytest.mark.parametrize("dim", [0, -1, (0, 1)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_slice_with_a_hole_is_left_out(
    layout: torch.layout, dim: int | tuple[int, ...], density: float
) -> None:
    draw = torch.Generator().manual_seed(2)
    values, mask = torch.randn(5, 4, generator=draw), torch.rand(5, 4, generator=draw) < density
    x = mg.masked(torch.where(mask, values, nan), mask)
    y = (x if layout == torch.strided else x.to_sparse(layout=layout)).complete(dim)
    assert y.layout == (layout if layout == torch.strided else torch.sparse_coo)
    kept = mask.all(dim, keepdim=True).expand(5, 4)
    assert torch.equal(y.mask, kept)
    assert torch.equal(y.to_dense().filled(0.0), torch.where(kept, values, 0))


def test_layouts_that_hold_more_than_one_entry_at_a_place() -> None:
    x = mg.from_lengths(torch.arange(8.0).reshape(2, 2, 2), torch.tensor([2, 1]), layout=torch.jagged)
    compiled: Any = torch.compile(lambda x: x.complete(-1), backend="eager", fullgraph=True)
    for y in (compiled(x), x.complete(-1).add_(0)):  # whose memory is not that of x
        assert y.layout == torch.jagged
        assert_entries(y.to_dense(), [[[0.0, 1.0], [2.0, 3.0]], [[4.0, 5.0], [None, None]]])
        y.add_(9)
    assert_entries(x.complete(1), [[[0.0, 1.0], [2.0, 3.0]], [[None, None], [None, None]]])
    blocks = mg.from_sparse(torch.tensor([[1.0, 2.0, 0.0, 0.0], [3.0, 4.0, 5.0, 6.0]]).to_sparse_bsr((1, 2)))
    assert blocks.complete(1).layout == torch.sparse_coo
    assert_entries(blocks.complete(1).to_dense(), [[None] * 4, [3.0, 4.0, 5.0, 6.0]])
    hybrid = mg.from_sparse(torch.tensor([[1.0, 2.0], [0.0, 0.0]]).to_sparse(1))
    assert_entries(hybrid.complete(1).to_dense(), [[1.0, 2.0], [None, None]])
    assert_entries(hybrid.complete(0).to_dense(), [[None, None], [None, None]])
    assert_entries(mg.masked(torch.tensor(2.0)).complete(), 2.0)
    assert mg.masked(torch.zeros(2, 0)).complete(1).shape == (2, 0)
    with pytest.raises(IndexError, match="range"):
        poisoned([1.0]).complete(1)
