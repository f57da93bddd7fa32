"""Attention within each sequence: queries attend only to keys of their own sequence, on the stored rows."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maskgrad.kernels.attention import ragged_scaled_dot_product_attention, served_rows
from maskgrad.mode import can_read
from maskgrad.patterns.jagged import JaggedPattern, same_lengths
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.jagged.rows import Call, is_jagged, padded
from maskgrad.semantics.multi_head_attention import DEFAULTS
from maskgrad.semantics.multi_head_attention import SIGNATURE as MULTI_HEAD
from maskgrad.semantics.stored.entries import StoredEntries, is_masked

__all__ = ["multi_head_attention_forward", "scaled_dot_product_attention"]

SIGNATURE = "query key value attn_mask dropout_p is_causal"


def attended(
    rows: list[Tensor],
    queries: JaggedPattern,
    keys: JaggedPattern,
    attn_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Rows (N, H, Ev) of query (N, H, E), key and value (M, H, E or Ev), and which of them have a key (None: all)."""
    if same_lengths(queries, keys):  # known if it is the same object
        keys = queries
    query, key, value = rows
    frame = (queries.offsets, keys.offsets, queries.longest, keys.longest)
    found = ragged_scaled_dot_product_attention(query, key, value, *frame, attn_mask, **options)
    served = served_rows(*frame, query.shape[0], attn_mask)
    if served is not None and can_read(served) and bool(served.all()):
        served = None
    return found, served


def with_mask(result: StoredEntries, served: Tensor | None) -> StoredEntries | Entries:
    """The rows; with a Boolean mask if some have no key."""
    if served is None:
        return result
    known = served.reshape(*served.shape, *(1,) * (result.values.ndim - served.ndim))
    whole = padded(result)
    mask = padded(StoredEntries(known.expand(result.values.shape), result.pattern))
    return Entries(whole.values, mask.values)


def scaled_dot_product_attention(call: Call) -> Any:
    """``F.scaled_dot_product_attention`` of (B, H, T, E) or (B, T, E), jagged in T."""
    given = call.bound(SIGNATURE)
    query, key, value = (given.pop(name) for name in ("query", "key", "value"))
    attn_mask = given.pop("attn_mask", None)
    if is_masked(attn_mask) or not _of_sequences(query, key, value):
        return None
    one_head = query.values.ndim == 2
    if one_head and attn_mask is not None and attn_mask.ndim > 2:
        attn_mask = attn_mask.unsqueeze(-3)
    rows = [x.values.unsqueeze(1) if one_head else x.values for x in (query, key, value)]
    found, served = attended(rows, query.pattern, key.pattern, attn_mask, **given)
    if one_head:
        found, served = found.squeeze(1), None if served is None else served[:, 0]
    return with_mask(StoredEntries(found, query.pattern), served)


def _of_sequences(query: Any, key: Any, value: Any) -> bool:
    """Return whether operands have the same sequences, with the ragged dimension before the last."""
    if not all(map(is_jagged, (query, key, value))):
        return False
    rank, batch = len(query.shape), query.pattern.frame.shape[:-1]
    alike = all(
        x.pattern.at == (0, rank - 2) and len(x.shape) == rank and x.pattern.frame.shape[:-1] == batch
        for x in (query, key, value)
    )
    # a key without a value counts in the softmax
    return alike and 3 <= rank <= 4 and same_lengths(key.pattern, value.pattern)


def multi_head_attention_forward(call: Call) -> Any:
    """``F.multi_head_attention_forward`` of (T, B, E), used by ``nn.MultiheadAttention``.

    Projections are computed on rows. Weights, if requested, have a Boolean mask.
    """
    given = DEFAULTS | call.bound(MULTI_HEAD)
    query, key, value = (given[name] for name in ("query", "key", "value"))
    if not _is_plain(given, query, key, value):
        return None
    dropout_p, weights = given["dropout_p"] if given["training"] else 0.0, None
    if given["need_weights"]:
        whole, weights = call.on_padded()
        if dropout_p:  # the same weights must be dropped in both
            return whole, weights
    rows = _projected(given, query.values, key.values, value.values)
    heads = given["num_heads"]
    length, size = query.shape[0], query.shape[1]
    attn_mask = given.get("attn_mask")
    if attn_mask is not None and attn_mask.ndim == 3:
        attn_mask = attn_mask.reshape(size, heads, length, -1)
    is_causal = given["is_causal"] and not given["need_weights"]
    by_head = [x.unflatten(-1, (heads, -1)) for x in rows]
    found, served = attended(
        by_head, query.pattern, key.pattern, None if is_causal else attn_mask,
        dropout_p=dropout_p, is_causal=is_causal,
    )  # fmt: skip
    if served is not None:
        served = served.any(1)
    out = F.linear(found.flatten(1), given["out_proj_weight"], given["out_proj_bias"])
    return with_mask(StoredEntries(out, query.pattern), served), weights


def _is_plain(given: dict[str, Any], query: Any, key: Any, value: Any) -> bool:
    """Return whether this is attention between whole sequences, with plain weights and without extra keys."""
    if not all(is_jagged(x) and x.pattern.at == (1, 0) and len(x.shape) == 3 for x in (query, key, value)):
        return False
    others = ("bias_k", "bias_v", "key_padding_mask", "static_k", "static_v")
    if any(given.get(name) is not None for name in others) or given.get("add_zero_attn"):
        return False
    if any(is_masked(x) for name, x in given.items() if name not in ("query", "key", "value")):
        return False
    fits = query.shape[-1] == given["embed_dim_to_check"] and not query.shape[-1] % given["num_heads"]
    attn_mask, sizes = given.get("attn_mask"), (query.shape[0], key.shape[0])
    if attn_mask is not None:
        leading = () if attn_mask.ndim == 2 else (query.shape[1] * given["num_heads"],)
        fits = fits and tuple(attn_mask.shape) == (*leading, *sizes) and attn_mask.dtype != torch.bool
    return fits and key.shape[:2] == value.shape[:2] and same_lengths(key.pattern, value.pattern)


def _projected(given: dict[str, Any], query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
    """Rows of queries, keys and values, as PyTorch projects them: one product if they are the same tensor."""
    weight, bias = given["in_proj_weight"], given["in_proj_bias"]
    if not given["use_separate_proj_weight"]:
        return list(F._in_projection_packed(query, key, value, weight, bias))  # type: ignore[attr-defined]
    weights = [given[f"{name}_proj_weight"] for name in "qkv"]
    biases = [None] * 3 if bias is None else bias.chunk(3)
    return [F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True)]
