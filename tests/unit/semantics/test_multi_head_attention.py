"""nn.MultiheadAttention and the transformers, unmodified: padding is as good as deleted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn as nn
from torch import Tensor

import maskgrad as mg
from tests.poison import inf, nan

D = torch.float64
LENGTHS = [4, 1, 3]


def padded(width: int, steps: int = 4, batch_first: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """Clean data, the same with garbage under the mask (a leaf), and the mask."""
    clean = torch.randn(len(LENGTHS), steps, width, dtype=D)
    mask = (torch.arange(steps) < torch.tensor(LENGTHS)[:, None])[..., None].expand(clean.shape)
    garbage = torch.tensor([nan, inf, -inf, 1e38], dtype=D).repeat(clean.numel() // 4 + 1)
    dirty = torch.where(mask, clean, garbage[: clean.numel()].reshape(clean.shape)).requires_grad_()
    return clean, dirty, mask


def gradients(result: Tensor, of: Any) -> list[Tensor]:
    grads = torch.autograd.grad(result, of, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(x) if grad is None else grad for x, grad in zip(of, grads, strict=True)]


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": False},
        {"kdim": 5, "vdim": 3},
        {"add_bias_kv": True},
        {"add_zero_attn": True},
        {"add_bias_kv": True, "add_zero_attn": True, "kdim": 5, "vdim": 3},
    ],
)
def test_every_sequence_as_if_it_were_alone(options: dict[str, Any], need_weights: bool) -> None:
    attention = nn.MultiheadAttention(4, 2, batch_first=True, dtype=D, **options)
    parts = [padded(width) for width in (4, options.get("kdim", 4), options.get("vdim", 4))]
    if "kdim" not in options:
        parts = [parts[0]] * 3
    masked = [mg.masked(dirty, mask) for _, dirty, mask in parts]
    leaves = [*{id(dirty): dirty for _, dirty, _ in parts}.values(), *attention.parameters()]
    with torch.autograd.set_detect_anomaly(True):
        out, weights = attention(*masked, need_weights=need_weights)
        assert out.mask.equal(parts[0][2][..., :1].expand(out.shape))
        found = gradients(out.filled(0.0).square().sum(), leaves)
    total = 0
    for i, length in enumerate(LENGTHS):
        alone, its = attention(*(dirty[i : i + 1, :length] for _, dirty, _ in parts))
        torch.testing.assert_close(out.filled(0.0)[i, :length], alone[0])
        total = total + alone.square().sum()
        if weights is not None:
            extra = its.shape[-1] - length
            columns = [*range(length), *range(4, 4 + extra)]
            assert weights.mask[i, :length][:, columns].all()
            assert weights.mask[i].sum() == length * len(columns)
            torch.testing.assert_close(weights.filled(0.0)[i, :length][:, columns], its[0])
    for grad, wanted in zip(found, gradients(total, leaves), strict=True):
        torch.testing.assert_close(grad, wanted)


def test_masks_of_the_module_keep_their_polarity() -> None:
    attention = nn.MultiheadAttention(4, 2, batch_first=True, dtype=D)
    clean, dirty, mask = padded(4)
    whole = torch.ones_like(mask)
    ignored = ~mask[..., 0]
    forbidden = torch.ones(4, 4).triu(1).bool()
    for options in (
        {"key_padding_mask": ignored},
        {"attn_mask": forbidden},
        {"attn_mask": forbidden, "key_padding_mask": ignored},
        {"attn_mask": forbidden, "is_causal": True},
        {"attn_mask": forbidden.expand(6, 4, 4)},
        {
            "attn_mask": torch.randn(4, 4, dtype=D),
            "key_padding_mask": torch.where(ignored, -inf, 0.0).double(),
        },
        {"average_attn_weights": False, "attn_mask": forbidden},
    ):
        for need_weights in (True, False):
            right, shares = attention(clean, clean, clean, need_weights=need_weights, **options)
            out, found = attention(
                mg.masked(clean, whole), clean, clean, need_weights=need_weights, **options
            )
            assert out.mask.all()
            torch.testing.assert_close(out.filled(0.0), right)
            assert (found is None) == (shares is None)
            if found is not None:
                assert found.mask.all()
                torch.testing.assert_close(found.filled(0.0), shares)
    # what key_padding_mask excludes may be anything, even in plain keys
    query = mg.masked(clean, mask)
    for need_weights in (True, False):
        out, _ = attention(query, dirty, dirty, key_padding_mask=ignored, need_weights=need_weights)
        expected, _ = attention(
            query, mg.masked(dirty, mask), mg.masked(dirty, mask), need_weights=need_weights
        )
        assert out.mask.equal(expected.mask)
        torch.testing.assert_close(out.filled(0.0), expected.filled(0.0))
        for grad in gradients(out.filled(0.0).sum(), [dirty, *attention.parameters()]):
            assert grad.isfinite().all()


def test_a_query_without_keys_in_one_head_listens_to_the_others() -> None:
    attention = nn.MultiheadAttention(4, 2, batch_first=True, dtype=D)
    x = torch.randn(1, 2, 4, dtype=D)
    forbidden = torch.tensor([[[0, 0], [1, 1]], [[0, 0], [0, 0]]]).bool()  # head 0 of query 1
    out, weights = attention(mg.masked(x, torch.ones_like(x).bool()), x, x, attn_mask=forbidden)
    assert out.mask.all()
    assert weights.mask.all()  # the mean over the other head
    forbidden[1, 1] = True
    out, weights = attention(mg.masked(x, torch.ones_like(x).bool()), x, x, attn_mask=forbidden)
    assert out.mask[0, :, 0].tolist() == weights.mask[0, :, 0].tolist() == [True, False]


def modules() -> list[tuple[str, nn.Module]]:
    layer = {"d_model": 4, "nhead": 2, "dim_feedforward": 8, "dropout": 0.0, "batch_first": True, "dtype": D}
    return [
        ("layer", nn.TransformerEncoderLayer(**layer)),
        ("layer, norm first", nn.TransformerEncoderLayer(**layer, norm_first=True, activation="gelu")),
        ("encoder", nn.TransformerEncoder(nn.TransformerEncoderLayer(**layer), 2, nn.LayerNorm(4, dtype=D))),
    ]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("which", range(3))
def test_an_encoder_sees_each_sequence_as_if_it_were_alone(which: int, training: bool) -> None:
    name, encoder = modules()[which]
    encoder.train(training)
    _, dirty, mask = padded(4)
    leaves = [dirty, *encoder.parameters()]
    for options in ({}, {"src_key_padding_mask": ~mask[..., 0]}):
        out = encoder(mg.masked(dirty, mask), **options)
        assert out.mask.equal(mask), name
        found = gradients(out.filled(0.0).square().sum(), leaves)
        total = 0
        for i, length in enumerate(LENGTHS):
            alone = encoder(dirty[i : i + 1, :length])
            torch.testing.assert_close(out.filled(0.0)[i, :length], alone[0])
            total = total + alone.square().sum()
        for grad, wanted in zip(found, gradients(total, leaves), strict=True):
            torch.testing.assert_close(grad, wanted)
        with torch.no_grad():
            again = encoder(mg.masked(dirty, mask), **options)
        assert again.mask.equal(mask)
        torch.testing.assert_close(again.filled(0.0), out.filled(0.0).detach())


def test_what_torch_refuses_is_refused_in_its_words() -> None:
    attention = nn.MultiheadAttention(4, 2, batch_first=True, dtype=D)
    x = mg.masked(torch.randn(1, 3, 4, dtype=D), torch.ones(1, 3, 4).bool())
    with pytest.raises(RuntimeError, match="attn_mask"):
        attention(x, x, x, attn_mask=torch.ones(2, 2).bool())
    with pytest.raises(RuntimeError, match="is_causal"):
        attention(x, x, x, is_causal=True)
    with pytest.raises(AssertionError, match="embedding dimension"):
        attention(*[mg.masked(torch.randn(1, 3, 6, dtype=D), torch.ones(1, 3, 6).bool())] * 3)
