"""Documents of packed rows, there and back, beside loops over documents."""

from __future__ import annotations

import itertools
import re
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


def transformed(sequences: list[Tensor]) -> list[Tensor]:
    return [s * s - s.mean(0, keepdim=True) for s in sequences]


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
    for whole in (z, z.to_dense()):
        packed = mg.pack_documents(whole * whole - whole.mean(1, keepdim=True), **where)
        assert packed.shape == r.x.shape
        assert packed.mask.flatten(2).all(2).equal(r.ids >= 0) if features else packed.mask.equal(r.ids >= 0)
        weights = torch.randn(r.x.shape, dtype=D)
        (found,) = torch.autograd.grad((packed.filled(0) * weights).sum(), r.x, retain_graph=True)
        loss = torch.zeros((), dtype=D)
        for document, sequence in zip(r.places, transformed(sequences), strict=True):
            for place, token in zip(document, sequence, strict=True):
                torch.testing.assert_close(packed.filled(0)[place], token)
                loss = loss + (token * weights[place]).sum()
        expected = torch.autograd.grad(loss, r.x, retain_graph=True)[0] if r.places else torch.zeros_like(r.x)
        torch.testing.assert_close(found, expected)
        assert found[r.ids < 0].eq(0).all()


@pytest.mark.parametrize("way", ["cu_seqlens", "and mask"])
def test_offsets_of_documents_some_empty(way: str) -> None:
    x, cu = torch.randn(6, 2, dtype=D, requires_grad=True), torch.tensor([0, 2, 2, 5, 6], dtype=torch.int32)
    mask = torch.tensor([True, False, True, True, False, False]) if way == "and mask" else None
    z = mg.unpack_documents(x, cu_seqlens=cu, mask=mask)
    parts = [x[a:b] if mask is None else x[a:b][mask[a:b]] for a, b in itertools.pairwise(cu)]
    assert z.lengths().tolist() == [len(part) for part in parts]
    assert torch.cat(parts).equal(z.values())
    packed = mg.pack_documents(z.softmax(1) + z, cu_seqlens=cu, mask=mask)
    kept = torch.ones(6, dtype=torch.bool) if mask is None else mask
    assert packed.mask.equal(kept[:, None].expand(6, 2))
    torch.testing.assert_close(packed.filled(0)[kept], torch.cat([p.softmax(0) + p for p in parts]))


def test_a_mask_alone_is_one_document_of_each_row() -> None:
    x = torch.arange(8.0).reshape(2, 4)
    mask = torch.tensor([[True, False, True, True], [False, False, True, False]])
    z = mg.unpack_documents(x, mask=mask)
    assert z.tolist() == [[0.0, 2.0, 3.0], [6.0, None, None]]
    assert z.tolist() == mg.unpack_documents(x, segment_ids=torch.where(mask, 0, -1)).tolist()
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
    whole = mg.unpack_documents(mg.masked(x.filled(1.0), ids >= 0), segment_ids=ids)
    assert whole.layout == torch.jagged


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.uint16, torch.bfloat16, torch.complex64], ids=str
)
def test_any_dtype(dtype: torch.dtype) -> None:
    x, ids = torch.tensor([[1, 0, 1]]).to(dtype), torch.tensor([[0, 1, -1]])
    z = mg.unpack_documents(x, segment_ids=ids)
    packed = mg.pack_documents(z, segment_ids=ids)
    assert packed.dtype == dtype
    assert packed.filled(0)[0, :2].tolist() == [1, 0]


def test_second_derivatives() -> None:
    r = rows("gaps")

    def function(x: Tensor) -> Tensor:
        z = mg.unpack_documents(torch.where(r.ids >= 0, x, torch.nan), segment_ids=r.ids)
        return mg.pack_documents((z * z).softmax(1) * z, segment_ids=r.ids).filled(0)

    x = torch.randn(r.ids.shape, dtype=D, requires_grad=True)
    assert torch.autograd.gradcheck(function, x)
    assert torch.autograd.gradgradcheck(function, x)


@pytest.mark.compiled(keep=2)
@pytest.mark.parametrize("way", ["segment_ids", "positions", "padding_id", "cu_seqlens"])
def test_compiled_where_sizes_are_known(way: str) -> None:
    def function(x: Tensor, where: dict[str, Any], sizes: Any) -> Tensor:
        z = mg.unpack_documents(x, **where, sizes=sizes)
        return mg.pack_documents(z * z - z.mean(1, keepdim=True), **where).filled(0)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for name in ("two rows", "gaps"):
        r = rows(name)
        if way == "cu_seqlens":
            x, where, sizes = torch.randn(5, dtype=D), {"cu_seqlens": torch.tensor([0, 2, 2, 5, 5])}, None
        else:
            x, where, sizes = r.x.detach(), WAYS[way](r), (len(r.places), sum(map(len, r.places)))
        x.requires_grad_()
        results = [f(x, where, sizes) for f in (function, compiled)]
        torch.testing.assert_close(*results)
        torch.testing.assert_close(*(torch.autograd.grad(result.sum(), x)[0] for result in results))
    if way == "segment_ids":
        with pytest.raises(RuntimeError, match=r"segment returns|sizes"):
            compiled(x, {"segment_ids": torch.tensor([[0, 1, 0, 1, 1, 1, 1, 1]] * 2)}, (4, 16))


IDS = torch.tensor([[0, 0, 1, 1]])
X = torch.arange(4.0).reshape(1, 4)
#: what is refused: arguments, the message, and what the line at its end gives, as lengths of documents
REFUSED: dict[str, tuple[dict[str, Any], str, list[int]]] = {
    "returns": ({"segment_ids": torch.tensor([[0, 1, 0, -1]])}, "segment 0 returns at position 2 of row 0", [1, 1, 1]),
    "two ways": ({"segment_ids": IDS, "position_ids": IDS}, "in 2 ways, segment_ids and position_ids", [2, 2]),
    "none": ({}, "nothing says where documents are", [2, 2]),
    "shape": ({"segment_ids": IDS[:, :3].expand(1, 3)}, r"\(B, T\) = \(1, 4\), found \(1, 3\)", []),
    "one row": ({"segment_ids": IDS[0]}, r"found \(4,\)", [2, 2]),
    "floats": ({"segment_ids": IDS.float()}, "must be a tensor of integers, found torch.float32", [2, 2]),
    "a mask as ids": ({"segment_ids": IDS > 0}, "found torch.bool", [2]),
    "a list": ({"segment_ids": [[0, 0, 1, 1]]}, "found list", [2, 2]),
    "positions jump": ({"position_ids": torch.tensor([[0, 1, 3, 0]])}, "position 3 at 2 of row 0", [3, 1]),
    "positions of the mask": (
        {"position_ids": torch.tensor([[0, 1, 1, 2]]), "mask": torch.tensor([[1, 1, 0, 1]])},
        "position 2 at 3 of row 0 neither",
        [4],
    ),
    "padding of positions": ({"position_ids": IDS, "padding_id": 0}, "padding_id is an id among segment_ids", []),
    "offsets": ({"cu_seqlens": torch.tensor([0, 2, 4])}, "ascend from 0 to the number of rows, 1; .* 4", [2, 2]),
    "sizes": ({"segment_ids": IDS, "sizes": (3, 4)}, r"2 documents of 4 tokens, and sizes is \(3, 4\)", [2, 2]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_what_to_write(name: str) -> None:
    where, message, lengths = REFUSED[name]
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        mg.unpack_documents(X, **where)
    line = re.search(r"write (mg\.\w+\(.*\))$", str(caught.value))
    assert line, caught.value
    if lengths:
        known = {"segment_ids": IDS, "mg": mg, "torch": torch, "x": X, **where}
        assert eval(line[1], known).lengths().tolist() == lengths


def test_sequences_that_do_not_fit_are_refused() -> None:
    z = mg.unpack_documents(X, segment_ids=IDS)
    shorter = mg.from_offsets(X[0, :3], torch.tensor([0, 2, 3]))
    with pytest.raises(ValueError, match=r"document 1 has 2 tokens, .* has 1; write"):
        mg.pack_documents(shorter, segment_ids=IDS)
    with pytest.raises(ValueError, match=r"z has 1 sequences, and the rows hold 2 documents; write"):
        mg.pack_documents(z[:1], segment_ids=IDS)
    with pytest.raises(ValueError, match=r"document 0 has 2 tokens, .* 3; write"):
        mg.pack_documents(mg.masked(torch.ones(2, 3)), segment_ids=IDS)
    with pytest.raises(
        TypeError, match=r"found Tensor; .* write mg.pack_documents\(mg.from_offsets"
    ) as caught:
        mg.pack_documents(X[0], segment_ids=IDS)  # type: ignore[arg-type]
    line = str(caught.value).partition(" write ")[2]
    assert eval(line, {"mg": mg, "z": X[0], "cu_seqlens": torch.tensor([0, 2, 4])}).tolist() == [0, 1, 2, 3]
