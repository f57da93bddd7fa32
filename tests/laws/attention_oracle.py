"""Attention written out: scores of all pairs, softmax over those that exist and are allowed, sums of what is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.laws.any_type.operands import Call
from tests.laws.any_type.operator_database import Entry
from tests.laws.slices import given

__all__ = ["attention"]

#: torch.testing seeds every call of a random operation with this.
SEED = 42


class Part(NamedTuple):
    """Clean values in the graph of the leaves, zero where unspecified, and the mask."""

    values: Tensor
    mask: Tensor


def attention(
    entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]
) -> tuple[Any, list[Tensor]]:
    """Both functions; a plain argument is a :class:`Part` that is fully specified."""
    parts = [
        Part(torch.where(mask, leaf, False if leaf.dtype == torch.bool else 0), mask)
        for leaf, mask in zip(leaves, masks, strict=True)
    ]
    args, kwargs = call.with_tensors(parts)
    torch.manual_seed(SEED)
    if entry.operation.name == "nn.functional.multi_head_attention_forward":
        out, weights = multi_head(given(F.multi_head_attention_forward, args, kwargs))
        found = [out] if weights is None else [out, weights]
        dense_args, dense_kwargs = call.with_tensors(leaves)
        assert type(entry.function(*dense_args, **dense_kwargs)) is tuple
        return tuple(part.values for part in found), [part.mask for part in found]
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    options = dict(zip(names, args, strict=False)) | kwargs
    q, k, v = (options[name] for name in names[:3])
    bias = options.get("attn_mask")
    if options.get("is_causal"):
        causal = torch.ones(q.values.shape[-2], k.values.shape[-2]).bool().tril()
        bias = Part(causal, torch.ones_like(causal))
    if options.get("enable_gqa"):
        times = q.values.shape[-3] // max(k.values.shape[-3], 1)  # no head at all: nothing is repeated
        k, v = (Part(*(x.repeat_interleave(times, -3) for x in part)) for part in (k, v))
    scale = options.get("scale") or q.values.shape[-1] ** -0.5
    out, _ = attended(q, k, v, bias, scale, options.get("dropout_p", 0.0))
    return out.values, [out.mask]


def product(left: Part, right: Part) -> Part:
    """``left @ right`` over the pairs in which both are specified."""
    return Part(left.values @ right.values, left.mask.double() @ right.mask.double() > 0)


def attended(q: Part, k: Part, v: Part, bias: Part | None, scale: float, dropout: float) -> tuple[Part, Part]:
    """The sums, and the weights: those of the pairs that exist, of queries that have a key."""
    scores = product(q, Part(*(x.transpose(-2, -1) for x in k)))
    values, allowed = scores.values * scale, scores.mask
    if bias is not None:
        may = bias.values if bias.values.dtype == torch.bool else bias.values != -torch.inf
        allowed = allowed & may & bias.mask
        if bias.values.dtype != torch.bool:
            values = values + torch.where(may, bias.values, 0)
    served = allowed.any(-1, keepdim=True)
    weights = torch.where(allowed, values, torch.where(served, -torch.inf, 0.0).to(values.dtype)).softmax(-1)
    weights = torch.where(allowed, weights, 0)
    weights = torch.dropout(weights, dropout, dropout > 0)
    return product(Part(weights, allowed), v), Part(weights, scores.mask & served)


def linear(x: Part, weight: Part, bias: Part | None) -> Part:
    found = product(x, Part(weight.values.T, weight.mask.T))
    if bias is None:
        return found
    mask = found.mask & bias.mask
    return Part(torch.where(mask, found.values + bias.values, 0), mask)


def chunks(part: Part | None) -> list[Any]:
    if part is None:
        return [None] * 3
    return [Part(*x) for x in zip(part.values.chunk(3), part.mask.chunk(3), strict=True)]


def each(part: Part, change: Any) -> Part:
    return Part(*(change(x) for x in part))


def multi_head(options: dict[str, Any]) -> tuple[Part, Part | None]:
    """Projections, heads, attention, projection; the mean of the weights over the heads that have one."""
    heads = options["num_heads"]
    inputs = [options[name] for name in ("query", "key", "value")]
    batched = inputs[0].values.ndim == 3
    if not batched:
        inputs = [each(x, lambda t: t.unsqueeze(1)) for x in inputs]
    weights = (
        [options[f"{letter}_proj_weight"] for letter in "qkv"]
        if options["use_separate_proj_weight"]
        else chunks(options["in_proj_weight"])
    )
    projected = [
        linear(x, w, b) for x, w, b in zip(inputs, weights, chunks(options["in_proj_bias"]), strict=True)
    ]
    bias = options["attn_mask"]
    if options["bias_k"] is not None:
        for i, name in ((1, "bias_k"), (2, "bias_v")):
            size = inputs[0].values.shape[1]
            extra = each(options[name], lambda t, size=size: t.reshape(1, 1, -1).expand(1, size, -1))
            projected[i] = Part(*(torch.cat(both) for both in zip(projected[i], extra, strict=True)))
        bias = (
            None if bias is None else Part(F.pad(bias.values, (0, 1)), F.pad(bias.mask, (0, 1), value=True))
        )
    q, k, v = (each(x, lambda t: t.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3)) for x in projected)
    assert not options["add_zero_attn"]
    assert options["key_padding_mask"] is None
    assert options["static_k"] is None
    if bias is not None and bias.values.ndim == 3:
        bias = each(bias, lambda t: t.unflatten(0, (-1, heads)))
    dropout = options["dropout_p"] if options["training"] else 0.0
    out, shares = attended(q, k, v, bias, q.values.shape[-1] ** -0.5, dropout)
    out = each(out, lambda t: t.permute(2, 0, 1, 3).flatten(2))
    out = linear(out, options["out_proj_weight"], options["out_proj_bias"])
    if not options["need_weights"]:
        return (out if batched else each(out, lambda t: t.squeeze(1))), None
    if options["average_attn_weights"]:
        count = shares.mask.sum(1)
        shares = Part(torch.where(shares.mask, shares.values, 0).sum(1) / count.clamp(min=1), count > 0)
    if not batched:
        out, shares = each(out, lambda t: t.squeeze(1)), each(shares, lambda t: t.squeeze(0))
    return out, shares
