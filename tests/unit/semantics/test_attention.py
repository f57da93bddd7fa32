"""Attention: each query over the keys that take part for it, nothing else."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import maskgrad as mg
from tests.poison import inf, nan


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


def test_groups_of_queries_must_divide_the_heads() -> None:
    query, key = torch.randn(2, 3, 3, 8), torch.randn(2, 2, 5, 8)
    with pytest.raises(RuntimeError, match="must divide"):
        F.scaled_dot_product_attention(query, mg.masked(key), key, enable_gqa=True)
