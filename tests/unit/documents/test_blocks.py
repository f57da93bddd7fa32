"""``mg.block_mask``: the blocks of ``create_block_mask``, and the mask of a loop over documents."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, create_mask

import maskgrad as mg
from tests.unit.documents.rows import SHAPES

FIELDS = [f"{f}{a}_{what}" for f in ("", "full_") for a in ("kv", "q") for what in ("num_blocks", "indices")]


def documents(rows: int, size: int, cut: float, padding: float) -> Tensor:
    """Random ids: a new document with probability ``cut``, padding anywhere, and at the ends of rows."""
    ids = (torch.rand(rows, size) < cut).cumsum(1)
    outside = (torch.rand(rows, size) < padding) | (torch.arange(size) > size * (2 * torch.rand(rows, 1)))
    return torch.where(outside, -1, ids)


def check(found: Any, allowed: Tensor) -> None:
    """The mask is ``allowed``; the blocks are those that PyTorch computes from it."""
    rows, size = allowed.shape[0], allowed.shape[-1]
    if not allowed.numel():
        assert found.shape == (rows, 1, size, size)
        return
    assert create_mask(found.mask_mod, rows, 1, size, size, "cpu").equal(allowed[:, None])
    expected = create_block_mask(found.mask_mod, rows, None, size, size, "cpu")
    assert found.to_dense().equal(expected.to_dense())
    assert (found.shape, found.BLOCK_SIZE) == (expected.shape, expected.BLOCK_SIZE)
    for name in FIELDS:
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=0, atol=0, msg=name)


def allowed_by(ids: Tensor, causal: bool, window: int | None) -> Tensor:
    place = torch.arange(ids.shape[1])
    between = place[:, None] - place
    found = (ids[:, :, None] == ids[:, None]) & (ids >= 0)[:, None]
    if causal:
        found = found & (between >= 0)
    return found if window is None else found & (between.abs() < window)


@pytest.mark.parametrize("window", [None, 1, 130])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [1, 128, 300, 700])
def test_blocks_are_those_of_the_mask(size: int, causal: bool, window: int | None) -> None:
    for cut, padding in ((0.003, 0.0), (0.02, 0.01), (0.5, 0.3), (0.0, 0.98)):
        ids = documents(2, size, cut, padding)
        found = mg.block_mask(segment_ids=ids, causal=causal, window=window)
        check(found, allowed_by(ids, causal, window))


def test_small_rows_lengths_and_masked_tensors() -> None:
    for name, lines in SHAPES.items():
        if name != "no rows":
            ids = torch.tensor(lines)
            check(mg.block_mask(segment_ids=ids, causal=True), allowed_by(ids, True, None))
    lengths, x = torch.tensor([3, 0, 5]), torch.zeros(3, 6, 2)
    padded = torch.where(torch.arange(6) < lengths[:, None], 0, -1)
    for found in (mg.block_mask(x, lengths=lengths), mg.block_mask(mg.from_lengths(x, lengths))):
        check(found, allowed_by(padded, False, None))
    check(mg.block_mask(lengths=lengths), allowed_by(padded[:, :5], False, None))
    jagged = mg.from_lengths(x, lengths, layout=torch.jagged)
    check(mg.block_mask(jagged, causal=True), allowed_by(torch.tensor([[0] * 3 + [2] * 5]), True, None))
    holes = mg.masked(x, torch.tensor([1, 0, 1, 1, 0, 1]).bool()[None, :, None].expand(x.shape))
    check(mg.block_mask(holes), allowed_by(torch.tensor([[0, -1, 0, 0, -1, 0]] * 3), False, None))


def test_it_is_fast_and_compiles() -> None:
    ids = documents(1, 8192, 0.002, 0.0)
    mg.block_mask(segment_ids=ids, causal=True)
    start = time.perf_counter()
    mg.block_mask(segment_ids=ids, causal=True)
    assert time.perf_counter() - start < 0.2  # 4 ms; create_block_mask takes 500 to 1,900

    def blocks(ids: Tensor) -> Tensor:
        return mg.block_mask(segment_ids=ids, causal=True).to_dense()

    ids = documents(2, 300, 0.02, 0.1)
    assert torch.compile(blocks, fullgraph=True, backend="aot_eager")(ids).equal(blocks(ids))


IDS = torch.tensor([[0, 0, 1, 1]])
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "nothing says where documents are, found x of type NoneType"),
    "two ways": ({"segment_ids": IDS, "lengths": torch.tensor([4])}, "in 2 ways, segment_ids and lengths"),
    "window": ({"segment_ids": IDS, "window": 0}, "itself too, found 0"),
    "returns": ({"segment_ids": torch.tensor([[0, 1, 0]])}, "segment 0 returns at position 2 of row 0"),
    "floats": ({"segment_ids": IDS.float()}, "integers, found torch.float32"),
    "lengths": ({"lengths": [4]}, "lengths must be a tensor of integers"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_what_to_write(name: str) -> None:
    given, message = REFUSED[name]
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        mg.block_mask(**given)
    line = re.search(r"write (mg\.block_mask\(.*\))$", str(caught.value))
    assert line, caught.value
    names = {"mg": mg, "torch": torch, "segment_ids": IDS, **given}
    assert eval(line[1], names).to_dense().any() or name == "window"
