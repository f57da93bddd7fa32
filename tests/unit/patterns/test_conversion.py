"""Every layout into every other one: by the pattern, never by the values, with derivatives of any order."""

from __future__ import annotations

import itertools

import pytest
import torch

import maskgrad as mg
from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.patterns import algebra
from maskgrad.patterns.conversion import LAYOUTS, pattern_of_places
from tests.poison import on, poisoned

BLOCKED = (torch.sparse_bsr, torch.sparse_bsc)
ENTRIES = [[0.0, 2.0, None, None], [3.0, 0.0, None, None], [None, None, None, None], [None, None, None, None]]


def in_layout(x: MaskedTensor, layout: torch.layout, blocksize: tuple[int, int] = (2, 2)) -> MaskedTensor:
    if layout == torch.strided:
        return x.to_dense()
    return x.to_sparse(layout=layout, blocksize=blocksize if layout in BLOCKED else None)


@pytest.mark.parametrize(("first", "second"), [*itertools.product(LAYOUTS, LAYOUTS)], ids=str)
def test_every_layout_becomes_every_other(first: torch.layout, second: torch.layout) -> None:
    plain = poisoned(ENTRIES, requires_grad=True)
    x = in_layout(in_layout(plain, first), second)
    assert x.layout == second
    assert x.tolist() == ENTRIES  # two stored zeros among them
    assert x.num_specified() == 4
    assert x.compressed().tolist() == [0, 2, 3, 0]
    (first_order,) = torch.autograd.grad((x**3).sum(), plain._values, create_graph=True)
    assert first_order.tolist() == [[0, 12, 0, 0], [27, 0, 0, 0], [0] * 4, [0] * 4]
    (second_order,) = torch.autograd.grad(first_order.sum(), plain._values)
    assert second_order.tolist() == [[0, 12, 0, 0], [18, 0, 0, 0], [0] * 4, [0] * 4]


@pytest.mark.parametrize("layout", LAYOUTS[1:], ids=str)
def test_torch_reads_the_same_tensor(layout: torch.layout) -> None:
    x = in_layout(poisoned(ENTRIES), layout)
    t = x.to_sparse_tensor()
    assert t.layout == layout
    torch.testing.assert_close(t.to_dense(), x.filled(0))
    with torch.sparse.check_sparse_tensor_invariants():
        again = mg.from_sparse(t)
    assert again.layout == layout
    assert algebra.equal(again._pattern, x._pattern)
    assert torch.equal(again, x)


def test_dense_dimensions_stay_where_the_layout_has_them() -> None:
    places = torch.tensor([[0, 1, 2], [1, 0, 1]])
    pattern, order = pattern_of_places(places, (3, 2), torch.sparse_coo)
    x = MaskedTensor(torch.arange(6.0).reshape(3, 2)[order], pattern)
    csr = x.to_sparse(layout=torch.sparse_csr)
    assert csr._values.shape == (3, 2)
    assert csr.tolist() == x.tolist()
    back = csr.to_sparse()
    assert back._values.shape == (3, 2)
    assert back.tolist() == x.tolist()
    rows = MaskedTensor(torch.ones(1, 2), pattern_of_places(torch.tensor([[1]]), (3,), torch.sparse_coo)[0])
    assert rows.to_sparse(layout=torch.sparse_csr).tolist() == [[None, None], [1.0, 1.0], [None, None]]


def test_batches_of_equal_numbers_are_stored_and_others_refused() -> None:
    mask = on([[1, 0], [0, 1]], [[0, 1], [1, 0]])
    x = mg.masked(torch.arange(8.0).reshape(2, 2, 2), mask)
    for layout in (torch.sparse_csr, torch.sparse_csc):
        assert x.to_sparse(layout=layout).tolist() == x.tolist()
    uneven = mg.masked(torch.zeros(2, 2, 2), on([[1, 1], [0, 1]], [[0, 1], [1, 0]]))
    with pytest.raises(ValueError, match=r"same number of entries.*between 2 and 3; use torch.sparse_coo"):
        uneven.to_sparse(layout=torch.sparse_csr)


@pytest.mark.parametrize(
    ("layout", "blocksize", "words"),
    [
        (torch.sparse_bsr, None, "blocksize must be two positive numbers"),
        (torch.sparse_csr, (1, 1), "blocksize must be None"),
        (torch.sparse_bsr, (3, 2), r"must divide the last two sizes \(4, 4\), found \(3, 2\)"),
        (torch.sparse_bsc, (0, 2), "must divide"),
        (
            torch.sparse_bsr,
            (4, 4),
            r"1 blocks of size \(4, 4\) are specified only in part, the first at \(0, 0\)",
        ),
        (torch._mkldnn, None, "layout must be one of"),
    ],
)
def test_what_does_not_fit_is_refused(
    layout: torch.layout, blocksize: tuple[int, int] | None, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        poisoned(ENTRIES).to_sparse(layout=layout, blocksize=blocksize)


def test_compressed_layouts_need_two_dimensions() -> None:
    with pytest.raises(ValueError, match=r"at least 2 sparse dimensions.*use torch.sparse_coo"):
        poisoned([1.0, None]).to_sparse(layout=torch.sparse_csr)


def test_places_beyond_int64_are_refused() -> None:
    places = torch.zeros(3, 1, dtype=torch.int64)
    with pytest.raises(ValueError, match="more than int64 can hold"):
        pattern_of_places(places, (2**31, 2**31, 4), torch.sparse_coo)
