"""Indexing: reading carries the pattern along; writing specifies, or removes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import maskgrad as mg
from tests.poison import assert_entries, gradient, leaf, nan, on, poisoned

X = [[1.0, None, 3.0], [None, 5.0, 6.0]]


@pytest.mark.parametrize(
    ("index", "kind", "words"),
    [
        (poisoned([True, None], torch.bool), TypeError, r"of dtype torch.bool.*filled\(False\)"),
        (poisoned([0, None], torch.int64), TypeError, r"of dtype torch.int64.*compressed\(\)"),
        (torch.tensor([0.0, 1.0]).float(), IndexError, r"got torch.float32; use index.long\(\)"),
    ],
)
def test_an_index_must_be_known(index: Any, kind: type[Exception], words: str) -> None:
    """Where it writes, where it selects, and in a list."""
    x = poisoned(X)
    with pytest.raises(kind, match=words):
        x[index if index.dtype != torch.int64 else [index]]
    with pytest.raises(kind, match=words):
        x[index] = 0.0
    with pytest.raises(kind, match=words):
        x[0, [index]]


def test_an_index_without_holes_is_read() -> None:
    whole = poisoned([1, 0], torch.int64)
    assert_entries(poisoned(X)[whole], [X[1], X[0]])
    assert torch.equal(torch.arange(3)[whole,], torch.tensor([1, 0]))
    assert_entries(poisoned(X).index_select(0, whole), [X[1], X[0]])
    assert torch.zeros(2)[poisoned([True, True], torch.bool),].shape == (2,)
    with pytest.raises(TypeError, match="index must be a plain tensor"):
        torch.zeros(2)[poisoned([True, None], torch.bool)]


def test_writing_into_an_expanded_mask() -> None:
    x = mg.masked(torch.zeros(2, 2), on([1, 0]))
    x[0, 0] = 1.0  # changes no mask
    with pytest.raises(RuntimeError, match=r"several entries that share one Boolean.*x\.clone\(\)"):
        x[0] = 1.0
    assert_entries(x, [[1.0, None], [0.0, None]])
    y = x.clone()
    y[0] = 1.0
    assert_entries(y, [[1.0, 1.0], [0.0, None]])
    z = mg.masked(torch.zeros(2, 2), on(1, 0).expand(2, 2).clone())
    z.expand(3, 2, 2)[1][0, 1] = 4.0  # the view is expanded, its mask is not
    assert_entries(z, [[0.0, 4.0], [0.0, None]])


@pytest.mark.parametrize(
    "made",
    [
        lambda: mg.from_lengths(torch.zeros(2, 3, 4), torch.tensor([1, 2]))[..., 0],
        lambda: mg.masked(torch.zeros(2, 3), on(1, 0, 0).expand(2, 3))[0],
        lambda: (mg.from_lengths(torch.zeros(2, 3, 4), torch.tensor([1, 2])) * 2).unbind(2)[1].T[:, 0],
    ],
)
def test_writing_into_a_view_of_some_of_the_entries_that_share_one_boolean(made: Any) -> None:
    """It would specify the others, too, with what lay under the mask; a mask of the view alone does not tell."""
    view = made()
    mask = view.mask.clone()
    with pytest.raises(RuntimeError, match=r"several entries that share one Boolean.*x\.clone\(\)"):
        view[1] = 5.0
    assert torch.equal(view.mask, mask)


#: Positions, of which some are missing; what lies there names no entry.
M = poisoned([[0, None], [2, -1]], torch.int64)
V = poisoned([None, 1], torch.int64)


@pytest.mark.parametrize(
    "index",
    [
        (M,),
        (..., V),
        (slice(None), V, None),
        (None, ..., M, 0),
        (V, slice(None), M),
        (M, V),
        (torch.tensor([1, 0]), V),
        (on(0, 1, 1), V),
        ([0, 2], V),
        (V, slice(None, None, 2), -1),
    ],
)
@pytest.mark.parametrize("whole", [True, False])
def test_a_missing_position_reads_nothing(index: tuple[Any, ...], whole: bool) -> None:
    """An entry is read at a missing position if what is read there depends on the position that is put in."""
    x = torch.arange(1.0, 37.0, dtype=torch.float64).reshape(3, 4, 3).requires_grad_()
    mask = torch.ones_like(x, dtype=torch.bool) if whole else (torch.arange(36) % 3 > 0).reshape(3, 4, 3)
    places = torch.arange(36).reshape(3, 4, 3)
    put_in = [
        places[tuple([part.filled(place) if isinstance(part, mg.MaskedTensor) else part for part in index])]
        for place in (0, 1)
    ]
    known = (put_in[0] == put_in[1]) & mask.reshape(-1)[put_in[0]]
    y = (x if whole else mg.masked(x, mask))[index]
    assert torch.equal(y.mask, known)
    assert torch.equal(y.filled(0.0), torch.where(known, put_in[0] + 1.0, 0))
    reads = torch.bincount(put_in[0][known], minlength=36).reshape(x.shape)
    assert torch.equal(gradient(y, x), reads.double())


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")  # PyTorch looks at rows before it asks
@pytest.mark.parametrize(
    "layout", [torch.strided, torch.jagged, torch.sparse_coo, torch.sparse_csr, torch.sparse_csc]
)
@pytest.mark.parametrize("read", [lambda w, at: w[at], lambda w, at: w[at,]], ids=["w[at]", "w[at,]"])
def test_weights_by_masked_labels_on_every_layout(layout: torch.layout, read: Any) -> None:
    labels = poisoned([[2, 0, None], [2, None, None]], torch.int64)
    if layout != torch.strided:
        labels = labels.to_jagged() if layout == torch.jagged else labels.to_sparse(layout=layout)
    w = leaf(1.0, nan, 3.0)
    y = read(w, labels)
    assert y.layout == layout
    assert_entries(y.to_dense(), [[3.0, 1.0, None], [3.0, None, None]])
    assert gradient(y, w).tolist() == [1.0, 0.0, 2.0]
    if layout in (torch.strided, torch.jagged):
        compiled = torch.compile(read, backend="eager", fullgraph=True)
        assert_entries(compiled(w, labels).to_dense(), [[3.0, 1.0, None], [3.0, None, None]])


def test_rows_by_stored_labels() -> None:
    labels, w = poisoned([[1, 0], [1, None]], torch.int64).to_jagged(), leaf([1.0, 2.0], [3.0, 4.0])
    y = w[labels,]
    assert y.layout == torch.jagged
    assert_entries(y.to_dense(), [[[3.0, 4.0], [1.0, 2.0]], [[3.0, 4.0], [None, None]]])
    with pytest.raises(TypeError, match=r"read entries of a plain vector.*x\[index.to_dense\(\)\]"):
        w[labels.to_sparse(layout=torch.sparse_coo),]
    with pytest.raises(TypeError, match=r"torch\.take .* Convert explicitly with x\.to_dense\(\)"):
        torch.take(mg.masked(w).to_sparse(layout=torch.sparse_coo), torch.tensor([0]))


def test_what_is_written_at_missing_positions_is_refused() -> None:
    x, y, at = poisoned([1.0, 2.0]), torch.zeros(2), poisoned([None, 1], torch.int64)
    with pytest.raises(TypeError, match=r"Use index.compressed\(\), and value\[index.mask\]"):
        x[at] = 9.0
    for target in (x, y):
        with pytest.raises(TypeError, match=r"Use index.compressed\(\)"):
            target.index_put((at,), torch.tensor(9.0))
    with pytest.raises(mg.UnsupportedOperationError, match=r"y\[index.compressed\(\)\] = value"):
        y[at,] = 9.0
    with pytest.raises(mg.UnsupportedOperationError, match=r"torch.Tensor.__setitem__"):
        y[0] = poisoned(None)
    x[at.compressed()] = 9.0
    y[at.compressed()] = 9.0
    assert_entries(x, [1.0, 9.0])
    assert y.tolist() == [0.0, 9.0]


def test_a_condition_that_is_known_wherever_the_tensor_is_selects_entries() -> None:
    x = poisoned([[1.0, -2.0, None], [None, 5.0, -6.0]])
    for found in (x[x > 0], x.masked_select(x > 0), torch.masked_select(x, x > 0)):
        assert_entries(found, [1.0, 5.0])
    rows = poisoned([True, None], torch.bool)
    assert_entries(poisoned([[1.0, 2.0], [None, None]])[rows], [[1.0, 2.0]])
    x[x < 0] = 0.0
    assert_entries(x, [[1.0, 0.0, None], [None, 5.0, 0.0]])
    x[x > 1] = mg.unspecified
    assert_entries(x, [[1.0, 0.0, None], [None, None, 0.0]])


def test_a_condition_that_is_not_known_alone_or_of_numbers_is_refused() -> None:
    x, condition = poisoned([1.0, 2.0]), poisoned([True, None], torch.bool)
    with pytest.raises(TypeError, match=r"Use index\.filled\(False\)"):
        x[condition]
    with pytest.raises(TypeError, match=r"Use index\.filled\(False\)"):
        x[condition] = 0.0
    with pytest.raises(mg.UnsupportedOperationError, match=r"use mask\.filled\(False\)"):
        x.masked_select(condition)
    assert x[condition.filled(False)].shape == (1,)
    with pytest.raises(TypeError, match=r"torch.where\(condition\) is undefined on a MaskedTensor"):
        torch.where(condition)
    with pytest.raises(TypeError, match=r"got no 'other'.*= mg.unspecified"):
        x.where(on(1, 0))
    with pytest.raises(TypeError, match=rf"condition must be a Boolean tensor, got {x.dtype}"):
        torch.where(x, 1.0, 2.0)
