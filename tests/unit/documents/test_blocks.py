"""``mg.block_mask``: the blocks of ``create_block_mask``, and the mask of a loop over documents."""

from __future__ import annotations

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
@pytest.mark.parametrize("size", [1, 128, 700])
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


def test_it_compiles() -> None:
    def blocks(ids: Tensor) -> Tensor:
        return mg.block_mask(segment_ids=ids, causal=True).to_dense()

    ids = documents(2, 300, 0.02, 0.1)
    assert torch.compile(blocks, fullgraph=True, backend="aot_eager")(ids).equal(blocks(ids))
