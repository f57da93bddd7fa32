"""Attention: each query over the keys that take part for it, nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import maskgrad as mg
from tests.poison import inf, nan

LENGTHS = {"query": 3, "key": 5, "value": 5}
WIDTHS = {"query": 4, "key": 4, "value": 2}


def dirty(values: Tensor, mask: Tensor, seed: int = 0) -> Tensor:
    """A leaf with garbage outside the mask."""
    garbage = torch.tensor([nan, inf, -inf, 1e38], dtype=values.dtype).roll(seed)
    garbage = garbage.repeat(values.numel() // 4 + 1)[: values.numel()].reshape(values.shape)
    return torch.where(mask, values, garbage).requires_grad_()


def operands(rows: bool, density: float = 0.6) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    clean = {name: torch.randn(2, 2, LENGTHS[name], WIDTHS[name], dtype=torch.float64) for name in LENGTHS}
    masks = {
        name: (torch.rand(*x.shape[:-1], 1) < density).expand(x.shape)
        if rows
        else torch.rand(x.shape) < density
        for name, x in clean.items()
    }
    return clean, masks


def masked(x: dict[str, Tensor], masks: dict[str, Tensor], which: Any) -> list[Any]:
    return [mg.masked(x[name], masks[name]) if name in which else x[name] for name in LENGTHS]


@pytest.mark.parametrize("garbage", [nan, inf, -inf, 1e38])
def test_plain_operands_may_hold_anything_where_nobody_looks(garbage: float) -> None:
    query = torch.randn(1, 3, 4, dtype=torch.float64, requires_grad=True)
    holes = torch.tensor([[True], [False], [True], [False]])
    data = torch.randn(1, 4, 4, dtype=torch.float64)
    broken = torch.where(holes, data, garbage).requires_grad_()
    out = F.scaled_dot_product_attention(
        mg.masked(query, torch.ones(1, 3, 4).bool()), broken, broken, attn_mask=holes.T.expand(3, 4)
    )
    right = F.scaled_dot_product_attention(query, data[:, ::2], data[:, ::2])
    assert out.mask.all()
    torch.testing.assert_close(out.filled(0.0), right)
    for grad in torch.autograd.grad(out.filled(0.0).sum(), [query, broken]):
        assert grad.isfinite().all()
    out = F.scaled_dot_product_attention(query, mg.masked(data, holes), broken)  # the keys alone are masked
    torch.testing.assert_close(out.filled(0.0), right)
    assert torch.autograd.grad(out.filled(0.0).sum(), broken)[0].isfinite().all()


def test_a_broken_key_disturbs_only_those_who_use_it() -> None:
    key = torch.tensor([[1.0, 0.0], [nan, inf], [0.0, 1.0]])
    query = mg.masked(torch.eye(2), torch.ones(2, 2).bool())
    allowed = torch.tensor([[True, False, True], [True, True, True]])
    out = F.scaled_dot_product_attention(query, key, key, attn_mask=allowed)
    assert out.mask.all()
    right = F.scaled_dot_product_attention(torch.eye(2), key[::2], key[::2])
    torch.testing.assert_close(out.filled(0.0)[0], right[0])
    assert out.filled(0.0)[1].isnan().all()


def test_a_masked_attention_mask() -> None:
    x = torch.randn(1, 3, 4)
    whole = mg.masked(x, torch.ones(1, 3, 4).bool())
    known = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0]]).bool()
    said = torch.tensor([[1, 0, 1], [1, 1, 1], [1, 1, 1]]).bool()
    expected = F.scaled_dot_product_attention(whole, x, x, attn_mask=known & said)
    for attn_mask in (mg.masked(said, known), mg.masked(torch.where(said, 0.0, -inf), known)):
        for first in (whole, x):
            found = F.scaled_dot_product_attention(first, x, x, attn_mask=attn_mask)
            assert found.mask.equal(expected.mask)
            assert found.mask[0, :, 0].tolist() == [True, True, False]
            torch.testing.assert_close(found.filled(0.0), expected.filled(0.0))


def test_one_sequence_has_neither_batch_nor_heads() -> None:
    clean, masks = operands(rows=True)
    given = {name: dirty(clean[name][0, 0], masks[name][0, 0]) for name in clean}
    found = F.scaled_dot_product_attention(**{n: mg.masked(x, masks[n][0, 0]) for n, x in given.items()})
    whole = {n: mg.masked(x[None, None], masks[n][:1, :1]) for n, x in given.items()}
    expected = F.scaled_dot_product_attention(**whole)[0, 0]
    assert torch.equal(found.mask, expected.mask)
    torch.testing.assert_close(found.filled(0), expected.filled(0))
    leaves = list(given.values())
    ours, theirs = (torch.autograd.grad(x.sum(), leaves, retain_graph=True) for x in (found, expected))
    torch.testing.assert_close(ours, theirs)


def test_grouped_queries() -> None:
    query, key, value = torch.randn(2, 4, 3, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)
    mask = (torch.rand(2, 2, 5, 1) < 0.5).expand(2, 2, 5, 8)
    found = F.scaled_dot_product_attention(
        query, mg.masked(key, mask), mg.masked(value, mask), enable_gqa=True
    )
    wide = [mg.masked(x.repeat_interleave(2, 1), mask.repeat_interleave(2, 1)) for x in (key, value)]
    expected = F.scaled_dot_product_attention(query, *wide)
    assert found.mask.equal(expected.mask)
    torch.testing.assert_close(found.filled(0.0), expected.filled(0.0))
    with pytest.raises(RuntimeError, match="must divide"):
        F.scaled_dot_product_attention(query[:, :3], mg.masked(key, mask), value, enable_gqa=True)
