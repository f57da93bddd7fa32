"""Attention: each query over the keys that take part for it, nothing else; compared with torch on those alone."""

from __future__ import annotations

import itertools
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


def by_deletion(
    x: dict[str, Tensor], masks: dict[str, Tensor], allowed: Tensor, added: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """One query at a time: keys without a score are deleted, values without an entry are left out of the sums."""
    clean = {name: torch.where(masks[name], x[name], 0) for name in x}
    size, heads, rows, width = *clean["query"].shape[:3], clean["value"].shape[-1]
    results, known = [], torch.zeros(size, heads, rows, width, dtype=torch.bool)
    for b, h, i in itertools.product(range(size), range(heads), range(rows)):
        keys = [
            j
            for j in range(clean["key"].shape[2])
            if allowed[b, h, i, j] and (masks["query"][b, h, i] & masks["key"][b, h, j]).any()
        ]
        if not keys:
            results.append(torch.zeros(width, dtype=torch.float64))
            continue
        scores = clean["key"][b, h, keys] @ clean["query"][b, h, i] * scale + added[b, h, i, keys]
        results.append(scores.softmax(0) @ clean["value"][b, h, keys])
        known[b, h, i] = masks["value"][b, h, keys].any(0)
    return torch.stack(results).reshape(known.shape), known


def masked(x: dict[str, Tensor], masks: dict[str, Tensor], which: Any) -> list[Any]:
    return [mg.masked(x[name], masks[name]) if name in which else x[name] for name in LENGTHS]


MASKED = [["query"], ["key"], ["value"], ["key", "value"], ["query", "key", "value"]]


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("which", MASKED)
@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("kind", ["none", "Boolean", "additive", "causal"])
def test_each_query_over_its_own_keys(which: list[str], rows: bool, kind: str) -> None:
    clean, masks = operands(rows)
    masks = {name: m if name in which else torch.ones_like(m) for name, m in masks.items()}
    allowed, added, options = torch.ones(2, 2, 3, 5, dtype=torch.bool), torch.zeros(2, 2, 3, 5).double(), {}
    if kind == "Boolean":
        allowed = torch.rand(2, 2, 3, 5) < 0.6
        options = {"attn_mask": allowed}
    if kind == "additive":
        allowed, added = torch.rand(2, 2, 3, 5) < 0.6, torch.randn(2, 2, 3, 5, dtype=torch.float64)
        options = {"attn_mask": added.masked_fill(~allowed, -inf)}
    if kind == "causal":
        allowed, options = torch.ones(3, 5).tril().bool().expand(2, 2, 3, 5), {"is_causal": True}
    leaves = {name: clean[name].clone().requires_grad_() for name in clean}
    right, known = by_deletion(leaves, masks, allowed, added, 0.5)
    weights = torch.randn(known.shape, dtype=torch.float64)
    expected = torch.autograd.grad((torch.where(known, right, 0) * weights).sum(), list(leaves.values()))
    for seed in range(4):
        x = {name: dirty(clean[name], masks[name], seed) for name in clean}
        with torch.autograd.set_detect_anomaly(True):
            out = F.scaled_dot_product_attention(*masked(x, masks, which), **options)
            assert out.mask.equal(known)
            torch.testing.assert_close(out.filled(0.0), torch.where(known, right, 0))
            found = torch.autograd.grad((out.filled(0.0) * weights).sum(), list(x.values()))
        for grad, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(grad, wanted)


def test_fully_specified_input_gives_what_torch_gives() -> None:
    x = [torch.randn(2, 3, 4, 8) for _ in range(3)]
    whole = [mg.masked(t, torch.ones_like(t).bool()) for t in x]
    for options in (
        {},
        {"is_causal": True},
        {"scale": 0.1},
        {"attn_mask": torch.ones(4, 4).tril().bool()},
        {"attn_mask": torch.randn(2, 1, 4, 4)},
    ):
        out = F.scaled_dot_product_attention(*whole, **options)
        assert out.mask.all()
        torch.testing.assert_close(out.filled(0.0), F.scaled_dot_product_attention(*x, **options))
    torch.manual_seed(3)
    dropped = F.scaled_dot_product_attention(*whole, dropout_p=0.5)
    torch.manual_seed(3)
    torch.testing.assert_close(dropped.filled(0.0), F.scaled_dot_product_attention(*x, dropout_p=0.5))


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


def test_torchs_complaints() -> None:
    x = mg.masked(torch.randn(1, 3, 4), torch.ones(1, 3, 4).bool())
    with pytest.raises(RuntimeError, match="is_causal"):
        F.scaled_dot_product_attention(x, x, x, attn_mask=torch.ones(3, 3).bool(), is_causal=True)
    with pytest.raises(RuntimeError):
        F.scaled_dot_product_attention(x, torch.randn(1, 3, 5), torch.randn(1, 3, 5))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves(dtype: torch.dtype) -> None:
    x = torch.randn(2, 2, 6, 4).to(dtype)
    known = (torch.arange(6) < 4)[:, None].expand(2, 2, 6, 4)
    data = torch.where(known, x, nan)
    m = mg.masked(data, known)
    out = F.scaled_dot_product_attention(m, m, m)
    assert out.dtype == dtype
    torch.testing.assert_close(out[:, :, :4].filled(0.0), F.scaled_dot_product_attention(*[x[:, :, :4]] * 3))
    assert not out.mask[:, :, 4:].any()


def test_nothing_to_attend_to() -> None:
    x = torch.full((1, 3, 4), nan, requires_grad=True)
    none = mg.masked(x, torch.zeros(1, 3, 4).bool())
    out = F.scaled_dot_product_attention(torch.randn(1, 2, 4), none, none)
    assert not out.mask.any()
    assert not torch.autograd.grad(out.filled(0.0).sum(), x)[0].count_nonzero()
    out = F.scaled_dot_product_attention(none, torch.randn(1, 0, 4), torch.randn(1, 0, 4))
    assert out.shape == (1, 3, 4)
    assert not out.mask.any()


def test_second_derivatives() -> None:
    clean, masks = operands(rows=False)
    leaves = [clean[name].clone().requires_grad_() for name in clean]

    def attend(*x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(
            *(mg.masked(t, m) for t, m in zip(x, masks.values(), strict=True))
        ).filled(0.0)

    assert torch.autograd.gradcheck(attend, leaves)
    assert torch.autograd.gradgradcheck(attend, leaves)
    # the fused kernel of PyTorch, which it takes in single precision too, has no second derivative
    found = []
    for dtype in (torch.float64, torch.float32):
        x = [leaf.detach().to(dtype).requires_grad_() for leaf in leaves]
        first = torch.autograd.grad(attend(*x).square().sum(), x, create_graph=True)
        plain = torch.autograd.grad(attend(*x).square().sum(), x)
        for one, other in zip(first, plain, strict=True):
            torch.testing.assert_close(one, other)
        found.append(torch.autograd.grad(sum((g**2).sum() for g in first), x))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one.float(), other, rtol=1e-3, atol=1e-4)


def test_second_derivatives_of_modules() -> None:
    torch.manual_seed(0)
    data = torch.randn(2, 6, 4, dtype=torch.float64, requires_grad=True)
    layer = torch.nn.MultiheadAttention(4, 2, batch_first=True).double()

    def attend(data: Tensor) -> Tensor:
        x = mg.from_lengths(data, torch.tensor([4, 6]))
        return layer(x, x, x, need_weights=False)[0].filled(0.0)  # type: ignore[no-any-return]

    assert torch.autograd.gradgradcheck(attend, data)
    penalty = mg.gradient_penalty(attend(data).square().sum(), layer.parameters())
    assert penalty.isfinite()


def test_compiled_in_one_piece() -> None:
    clean, masks = operands(rows=True)

    def attend(query: Any, key: Any, value: Any) -> Any:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)

    arguments = masked(clean, masks, LENGTHS)
    found, expected = (
        torch.compile(attend, fullgraph=True, backend="aot_eager")(*arguments),
        attend(*arguments),
    )
    assert found.mask.equal(expected.mask)
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
