"""Attention on jagged batches: each sequence as if it were alone."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import maskgrad as mg
from tests.poison import nan

QUERIES, KEYS = torch.tensor([3, 0, 5, 1]), torch.tensor([4, 2, 3, 1])


def padded(lengths: Tensor, longest: int, features: int) -> Tensor:
    data = torch.randn(len(lengths), longest, features, dtype=torch.float64)
    data[torch.arange(longest) >= lengths[:, None]] = nan
    return data.requires_grad_()


@pytest.mark.parametrize("sizes", [(2, 0, 3, 0), (0, 0, 0, 0)])
def test_memories_that_are_empty_leave_no_nan(sizes: tuple[int, ...]) -> None:
    queries, lengths = padded(QUERIES, 6, 8), torch.tensor(sizes)
    memory = padded(lengths, 4, 8)
    attention = nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
    served = (torch.arange(6) < QUERIES[:, None]) & (lengths > 0)[:, None]
    for run in (
        F.scaled_dot_product_attention,
        lambda *parts: attention(*parts, need_weights=False)[0],
        lambda *parts: attention(*parts)[0],
    ):
        q = mg.from_lengths(queries, QUERIES, layout=torch.jagged)
        k = mg.from_lengths(memory, lengths, layout=torch.jagged)
        found = run(q, k, k)
        assert torch.equal(found.mask, served.unsqueeze(-1).expand(found.shape))
        leaves = [queries, memory, *attention.parameters()]
        grads = torch.autograd.grad(found.square().sum(), leaves, allow_unused=True)
        assert all(grad is None or grad.isfinite().all() for grad in grads)
        assert not grads[0][~served].any()


def test_transformer_with_a_decoder() -> None:
    """An unmodified nn.Transformer, causal in its decoder, source and target of other lengths."""
    model = nn.Transformer(8, 2, 1, 1, 16, 0.0, batch_first=True, dtype=torch.float64)
    before, after = torch.tensor([4, 3, 6]), torch.tensor([2, 5, 1])
    source, target = padded(before, 6, 8), padded(after, 5, 8)
    causal = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    x, y = (mg.from_lengths(*given, layout=torch.jagged) for given in ((source, before), (target, after)))
    found = model(x, y, tgt_mask=causal, tgt_is_causal=True)
    assert found.layout == torch.jagged
    for b, (m, n) in enumerate(zip(before.tolist(), after.tolist(), strict=True)):
        one, other = source[b : b + 1, :m], target[b : b + 1, :n]
        expected = model(one, other, tgt_mask=causal[:n, :n], tgt_is_causal=True)
        torch.testing.assert_close(found.filled(nan)[b, :n], expected[0])


@pytest.mark.parametrize("option", ["add_zero_attn", "add_bias_kv"])
def test_keys_that_the_module_adds(option: str) -> None:
    attention = nn.MultiheadAttention(4, 2, batch_first=True, dtype=torch.float64, **{option: True})
    lengths = torch.tensor([2, 4, 1])
    data = padded(lengths, 4, 4)
    x, y = (mg.from_lengths(data, lengths, layout=layout) for layout in (torch.jagged, torch.strided))
    found, expected = (attention(t, t, t, need_weights=False)[0].filled(0.0) for t in (x, y))
    torch.testing.assert_close(found, expected)
