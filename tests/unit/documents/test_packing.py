"""Documents of packed rows, there and back, beside loops over documents."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from tests.unit.documents.rows import SHAPES, D, Rows, positions_of, rows

#: each way to say where documents are, as arguments for rows
WAYS: dict[str, Callable[[Rows], dict[str, Any]]] = {
    "segment_ids": lambda r: {"segment_ids": r.ids},
    "int32": lambda r: {"segment_ids": r.ids.int()},
    "padding_id": lambda r: {"segment_ids": torch.where(r.ids < 0, 99, r.ids), "padding_id": 99},
    "masked ids": lambda r: {"segment_ids": mg.masked(torch.where(r.ids < 0, 5, r.ids), r.ids >= 0)},
    "ids and mask": lambda r: {"segment_ids": torch.where(r.ids < 0, 0, r.ids), "mask": (r.ids >= 0).long()},
    "positions": lambda r: {"position_ids": positions_of(r.ids), "mask": r.ids >= 0},
}


@pytest.mark.parametrize("features", [(), (2, 3)], ids=str)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SHAPES)
def test_documents_are_sequences_and_back(name: str, way: str, features: tuple[int, ...]) -> None:
    r = rows(name, *features)
    where = WAYS[way](r)
    z = mg.unpack_documents(r.x, **where)
    sequences = r.documents(r.x)
    assert z.layout == torch.jagged
    assert z.lengths().tolist() == [len(s) for s in sequences]
    assert z.shape == (len(sequences), max(map(len, sequences), default=0), *features)
    expected = torch.zeros_like(r.x)
    for document, sequence in zip(r.places, sequences, strict=True):
        for place, token in zip(document, sequence * sequence - sequence.mean(0, keepdim=True), strict=True):
            expected = expected.index_put(tuple(map(torch.tensor, place)), token)
    weights = torch.randn(r.x.shape, dtype=D)
    for whole in (z, z.to_dense()):
        packed = mg.pack_documents(whole * whole - whole.mean(1, keepdim=True), **where)
        assert packed.mask.equal((r.ids >= 0).view(*r.ids.shape, *[1] * len(features)).expand(r.x.shape))
        torch.testing.assert_close(packed.filled(0), expected)
        if r.places:
            gradients = [
                torch.autograd.grad((y * weights).sum(), r.x, retain_graph=True)[0]
                for y in (packed.filled(0), expected)
            ]
            torch.testing.assert_close(*gradients)


def test_offsets_of_documents_some_empty() -> None:
    x, cu = torch.randn(6, 2, dtype=D), torch.tensor([0, 2, 2, 5, 6], dtype=torch.int32)
    for mask in (None, torch.tensor([True, False, True, True, False, False])):
        z = mg.unpack_documents(x, cu_seqlens=cu, mask=mask)
        kept = torch.ones(6, dtype=torch.bool) if mask is None else mask
        parts = [x[a:b][kept[a:b]] for a, b in itertools.pairwise(cu)]
        assert z.lengths().tolist() == [len(part) for part in parts]
        assert torch.cat(parts).equal(z.values())
        packed = mg.pack_documents(z + z, cu_seqlens=cu, mask=mask)
        assert packed.mask.equal(kept[:, None].expand(6, 2))
        torch.testing.assert_close(packed.filled(0), (x + x) * kept[:, None])


def test_a_mask_alone_is_one_document_of_each_row() -> None:
    x = torch.arange(8.0).reshape(2, 4)
    mask = torch.tensor([[True, False, True, True], [False, False, True, False]])
    z = mg.unpack_documents(x, mask=mask)
    assert z.tolist() == [[0.0, 2.0, 3.0], [6.0, None, None]]
    following = z.drop_first(1) - z.drop_last(1)  # to the next specified entry
    assert following.tolist() == [[2.0, 1.0], [None, None]]


def test_a_masked_tensor_keeps_its_mask() -> None:
    ids = torch.tensor([[0, 0, 1, 1], [0, -1, -1, -1]])
    x = mg.masked(torch.arange(8.0).reshape(2, 4), torch.tensor([[1, 0, 1, 1], [1, 0, 0, 1]]))
    z = mg.unpack_documents(x, segment_ids=ids)
    assert (z.layout, z.tolist()) == (torch.strided, [[0.0, None], [2.0, 3.0], [4.0, None]])
    packed = mg.pack_documents(z, segment_ids=ids)
    assert packed.tolist() == [[0.0, None, 2.0, 3.0], [4.0, None, None, None]]
    assert mg.unpack_documents(packed, segment_ids=ids).tolist() == z.tolist()
    assert mg.unpack_documents(mg.masked(x.filled(1.0), ids >= 0), segment_ids=ids).layout == torch.jagged


@pytest.mark.compiled
@pytest.mark.parametrize("way", ["segment_ids", "positions", "padding_id"])
def test_compiled_where_sizes_are_known(way: str) -> None:
    def function(x: Tensor, where: dict[str, Any], sizes: Any) -> Tensor:
        z = mg.unpack_documents(x, **where, sizes=sizes)
        return mg.pack_documents(z * z - z.mean(1, keepdim=True), **where).filled(0)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for name in ("two rows", "gaps"):
        r = rows(name)
        sizes = len(r.places), sum(map(len, r.places))
        results = [f(r.x, WAYS[way](r), sizes) for f in (function, compiled)]
        torch.testing.assert_close(*results)
        torch.testing.assert_close(*(torch.autograd.grad(result.sum(), r.x)[0] for result in results))
    if way == "segment_ids":
        with pytest.raises(RuntimeError, match=r"segment returns|sizes"):
            compiled(r.x, {"segment_ids": torch.tensor([[0, 1, 0, 1, 1, 1, 1, 1]] * 2)}, (4, 16))
