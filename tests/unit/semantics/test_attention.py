"""Attention: each query over the keys that take part for it, nothing else."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import maskgrad as mg
from tests.poison import inf, nan


def test_a_broken_key_disturbs_only_those_who_use_it() -> None:
    key = torch.tensor([[1.0, 0.0], [nan, inf], [0.0, 1.0]])
    allowed = torch.tensor([[True, False, True], [True, True, True]])
    out = F.scaled_dot_product_attention(mg.masked(torch.eye(2)), key, key, attn_mask=allowed)
    assert out.mask.all()
    right = F.scaled_dot_product_attention(torch.eye(2), key[::2], key[::2])
    torch.testing.assert_close(out.filled(0.0)[0], right[0])
    assert out.filled(0.0)[1].isnan().all()


def test_groups_of_queries_must_divide_the_heads() -> None:
    query, key = torch.randn(2, 3, 3, 8), torch.randn(2, 2, 5, 8)
    with pytest.raises(RuntimeError, match="must divide"):
        F.scaled_dot_product_attention(query, mg.masked(key), key, enable_gqa=True)
