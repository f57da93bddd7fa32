"""Attention on jagged batches: each sequence as if it were alone."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import maskgrad as mg

NAN = float("nan")
QUERIES, KEYS = torch.tensor([3, 0, 5, 1]), torch.tensor([4, 2, 3, 0])


def padded(lengths: Tensor, longest: int, features: int, seed: int) -> Tensor:
    torch.manual_seed(seed)
    data = torch.randn(len(lengths), longest, features, dtype=torch.float64)
    data[torch.arange(longest) >= lengths[:, None]] = NAN
    return data.requires_grad_()


def alone(run, *batches: tuple[Tensor, Tensor]) -> list[Tensor]:
    """What ``run`` makes of each sequence by itself."""
    sizes = [lengths.tolist() for _, lengths in batches]
    parts = [
        [data[b, : s[b]] for (data, _), s in zip(batches, sizes, strict=True)] for b in range(len(sizes[0]))
    ]
    return [run(*(p.unsqueeze(0) for p in each)).squeeze(0) for each in parts]


@pytest.mark.parametrize("sizes", [(2, 0, 3, 0), (0, 0, 0, 0)])
def test_memories_that_are_empty_leave_no_nan(sizes: tuple[int, ...]) -> None:
    queries, lengths = padded(QUERIES, 6, 8, 0), torch.tensor(sizes)
    memory = padded(lengths, 4, 8, 1)
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


def test_attention_written_by_hand() -> None:
    """Scores of two jagged batches are blocks, for which there is no layout: they have a Boolean mask."""
    data, weights = padded(QUERIES, 6, 8, 0), torch.randn(4, 6, 8, dtype=torch.float64)

    def run(x):
        return (x @ x.transpose(-1, -2)).softmax(-1) @ x

    x = mg.from_lengths(data, QUERIES, layout=torch.jagged)
    found, expected = run(x), alone(run, (data, QUERIES))
    total = 0 * data[:, 0].nansum()
    for b, rows in enumerate(expected):
        assert found.mask[b].sum() == rows.numel()
        torch.testing.assert_close(found.filled(NAN)[b, : len(rows)], rows)
        total = total + (rows * weights[b, : len(rows)]).sum()
    (grad,) = torch.autograd.grad((found * weights).sum(), data)
    torch.testing.assert_close(grad.nan_to_num(NAN), torch.autograd.grad(total, data)[0].nan_to_num(0.0))
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")(x.detach())
    assert torch.equal(compiled.mask, found.mask)
    assert torch.equal(found.to_jagged().offsets(), x.offsets())


def test_a_key_without_a_value_counts_in_the_softmax() -> None:
    data = padded(QUERIES, 6, 8, 0)
    q = mg.from_lengths(data, QUERIES, layout=torch.jagged)
    shorter = mg.from_lengths(data, (QUERIES - 1).clamp(min=0), layout=torch.jagged)
    found = F.scaled_dot_product_attention(q, q, shorter)
    expected = F.scaled_dot_product_attention(q.to_dense(), q.to_dense(), shorter.to_dense())
    assert torch.equal(found.mask, expected.mask)
    torch.testing.assert_close(found.filled(0.0), expected.filled(0.0))
    weights = torch.softmax(data[0, 0] @ data[0, :3].T / 8**0.5, -1)
    torch.testing.assert_close(found.filled(NAN)[0, 0], weights[:2] @ data[0, :2])


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kind", ["self", "cross", "keys apart", "other width"])
@pytest.mark.parametrize("need_weights", [False, True])
def test_multi_head_attention_sees_each_sequence_alone(
    batch_first: bool, kind: str, need_weights: bool
) -> None:
    width = 6 if kind == "other width" else 8
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(8, 2, kdim=width, vdim=width, batch_first=batch_first, dtype=torch.float64)
    full = KEYS.clamp(min=1)
    data, others = padded(QUERIES, 6, 8, 0), padded(full, 5, width, 1)

    def turned(x):
        return x if batch_first else x.transpose(0, 1)

    def call(x, y):
        key, value = (x, x) if kind == "self" else (y, y * 2 if kind == "keys apart" else y)
        return layer(x, key, value, need_weights=need_weights)

    def run(layout: torch.layout):
        batches = [mg.from_lengths(d, n, layout=layout) for d, n in ((data, QUERIES), (others, full))]
        return call(*map(turned, batches))

    found, weights = run(torch.jagged)
    assert found.layout == torch.jagged
    expected, right = run(torch.strided)
    assert torch.equal(found.mask, expected.mask)
    torch.testing.assert_close(found.filled(0.0), expected.filled(0.0))
    if need_weights:
        assert weights.layout == torch.strided
        assert torch.equal(weights.mask, right.mask)
        torch.testing.assert_close(weights.filled(0.0), right.filled(0.0))
    names = [data, *layer.parameters()]
    gradients = [torch.autograd.grad(y.square().sum(), names, allow_unused=True) for y in (found, expected)]
    for one, other in zip(*gradients, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other)


def test_transformer_with_a_decoder() -> None:
    """An unmodified nn.Transformer, causal in its decoder, source and target of other lengths."""
    torch.manual_seed(0)
    model = nn.Transformer(8, 2, 1, 1, 16, 0.0, batch_first=True, dtype=torch.float64)
    lengths = torch.tensor([2, 5, 1])
    source, target = padded(torch.tensor([4, 3, 6]), 6, 8, 0), padded(lengths, 5, 8, 1)
    causal = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    found = model(
        mg.from_lengths(source, torch.tensor([4, 3, 6]), layout=torch.jagged),
        mg.from_lengths(target, lengths, layout=torch.jagged),
        tgt_mask=causal,
        tgt_is_causal=True,
    )
    assert found.layout == torch.jagged

    def run(x, y):
        length = y.shape[1]
        return model(x, y, tgt_mask=causal[:length, :length], tgt_is_causal=True)

    for b, rows in enumerate(alone(run, (source, torch.tensor([4, 3, 6])), (target, lengths))):
        torch.testing.assert_close(found.filled(NAN)[b, : lengths[b]], rows)
