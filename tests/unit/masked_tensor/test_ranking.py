"""Ranks among the specified entries: those of the vector without its unspecified entries."""

from __future__ import annotations

import pytest
import torch

import maskgrad as mg
from tests.poison import assert_entries, inf, nan, poisoned


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("layout", [torch.strided, torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_ranks_are_those_of_what_is_left(layout: torch.layout, dim: int, descending: bool) -> None:
    draw = torch.Generator().manual_seed(3)
    values = torch.randint(0, 4, (7, 5), generator=draw).double()  # with ties
    mask = torch.rand(7, 5, generator=draw) < 0.6
    x = mg.masked(torch.where(mask, values, nan), mask)
    found = mg.ranks(x if layout == torch.strided else x.to_sparse(layout=layout), dim, descending=descending)
    assert (found.layout, found.dtype) == (layout, torch.int64)
    assert torch.equal(found.mask, mask)
    for one, known, row in zip(
        *[t.movedim(dim, -1) for t in (values, mask, found.to_dense().filled(-1))], strict=True
    ):
        order = one[known].argsort(descending=descending, stable=True)
        assert row[known].tolist() == order.argsort().tolist()


def test_ranks_stay_on_the_layout_of_sequences_and_blocks() -> None:
    sequences = torch.tensor([[3.0, 1.0, 2.0], [5.0, 4.0, nan]])
    x = mg.from_lengths(sequences, torch.tensor([3, 2]), layout=torch.jagged)
    for ranks in (mg.ranks, torch.compile(mg.ranks, backend="eager", fullgraph=True)):
        assert ranks(x).layout == torch.jagged
        assert_entries(ranks(x).to_dense(), [[2, 0, 1], [1, 0, None]])
    assert_entries(mg.ranks(x, 0).to_dense(), [[0, 0, 0], [1, 1, None]])
    blocks = mg.from_sparse(torch.tensor([[2.0, 1.0, 0.0, 0.0], [3.0, 4.0, 6.0, 5.0]]).to_sparse_bsr((1, 2)))
    assert mg.ranks(blocks).layout == torch.sparse_bsr
    assert_entries(mg.ranks(blocks).to_dense(), [[1, 0, None, None], [0, 1, 3, 2]])
    hybrid = mg.from_sparse(torch.tensor([[2.0, 1.0], [0.0, 0.0], [1.0, 5.0]]).to_sparse(1))
    assert_entries(mg.ranks(hybrid, 0).to_dense(), [[1, 0], [None, None], [0, 1]])
    assert_entries(mg.ranks(hybrid, 1).to_dense(), [[1, 0], [None, None], [0, 1]])


def test_what_is_specified_is_ranked_as_torch_sorts_it() -> None:
    assert_entries(mg.ranks(poisoned([nan, inf, None, -inf])), [2, 1, None, 0])
    assert_entries(mg.ranks(poisoned([True, None, False], torch.bool)), [1, None, 0])
    assert_entries(mg.ranks(mg.masked(torch.tensor(3.0))), 0)
    plain = torch.randn(4, 3)
    assert torch.equal(mg.ranks(plain, 0), plain.argsort(0).argsort(0))
    assert mg.ranks(torch.zeros(2, 0)).shape == (2, 0)
    with pytest.raises(
        TypeError, match=r"x must be a strided tensor or a MaskedTensor, found list; use torch.as_tensor"
    ):
        mg.ranks([1.0])  # type: ignore[type-var]
    for x in (poisoned([1.0]), torch.ones(1)):
        with pytest.raises(IndexError, match="range"):
            mg.ranks(x, 1)
