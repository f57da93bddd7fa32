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


def padded(width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Clean data, the same with NaN under the mask (a leaf), and the mask."""
    clean = torch.randn(len(LENGTHS), 4, width, dtype=D)
    mask = (torch.arange(4) < torch.tensor(LENGTHS)[:, None])[..., None].expand(clean.shape)
    return clean, torch.where(mask, clean, nan).requires_grad_(), mask


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": False},
        {"kdim": 5, "vdim": 3},
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
        found = torch.autograd.grad(out.filled(0.0).square().sum(), leaves, materialize_grads=True)
    total = torch.zeros(())
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
    torch.testing.assert_close(found, torch.autograd.grad(total, leaves, materialize_grads=True))


def test_what_is_not_the_query_is_projected_by_its_own_weights() -> None:
    attention, (clean, _, mask) = nn.MultiheadAttention(4, 2, batch_first=True, dtype=D), padded(4)
    other = torch.randn_like(clean)
    x, y = mg.masked(clean, mask), mg.masked(other, mask)
    for masked, plain in (((x, y, y), (clean, other, other)), ((x, x, y), (clean, clean, other))):
        found = attention(*masked, need_weights=False)[0].filled(0.0)
        for i, length in enumerate(LENGTHS):
            alone = attention(*(part[i : i + 1, :length] for part in plain))[0]
            torch.testing.assert_close(found[i, :length], alone[0])


def test_masks_of_the_module_keep_their_polarity() -> None:
    attention = nn.MultiheadAttention(4, 2, batch_first=True, dtype=D)
    clean, _, mask = padded(4)
    ignored = ~mask[..., 0]
    forbidden = torch.ones(4, 4).triu(1).bool()
    for options in (
        {"key_padding_mask": ignored},
        {"attn_mask": forbidden, "key_padding_mask": ignored},
        {"attn_mask": forbidden.expand(6, 4, 4)},
        {
            "attn_mask": torch.randn(4, 4, dtype=D),
            "key_padding_mask": torch.where(ignored, -inf, 0.0).double(),
        },
        {"average_attn_weights": False, "attn_mask": forbidden},
    ):
        for need_weights in (True, False):
            right, shares = attention(clean, clean, clean, need_weights=need_weights, **options)
            out, found = attention(mg.masked(clean), clean, clean, need_weights=need_weights, **options)
            assert out.mask.all()
            torch.testing.assert_close(out.filled(0.0), right)
            assert (found is None) == (shares is None)
            if found is not None:
                assert found.mask.all()
                torch.testing.assert_close(found.filled(0.0), shares)


def test_a_query_without_keys_in_one_head_listens_to_the_others() -> None:
    attention = nn.MultiheadAttention(4, 2, batch_first=True, dtype=D)
    x = torch.randn(1, 2, 4, dtype=D)
    forbidden = torch.tensor([[[0, 0], [1, 1]], [[0, 0], [0, 0]]]).bool()  # head 0 of query 1
    out, weights = attention(mg.masked(x), x, x, attn_mask=forbidden)
    assert out.mask.all()
    assert weights.mask.all()  # the mean over the other head
    forbidden[1, 1] = True
    out, weights = attention(mg.masked(x), x, x, attn_mask=forbidden)
    assert out.mask[0, :, 0].tolist() == weights.mask[0, :, 0].tolist() == [True, False]


def test_what_torch_refuses_is_refused_in_its_words() -> None:
    attention = nn.MultiheadAttention(4, 2, batch_first=True, dtype=D)
    x = mg.masked(torch.randn(1, 3, 4, dtype=D))
    with pytest.raises(RuntimeError, match="attn_mask"):
        attention(x, x, x, attn_mask=torch.ones(2, 2).bool())
    with pytest.raises(RuntimeError, match="is_causal"):
        attention(x, x, x, is_causal=True)
    with pytest.raises(AssertionError, match="embedding dimension"):
        attention(*[mg.masked(torch.randn(1, 3, 6, dtype=D))] * 3)
