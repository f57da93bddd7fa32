"""``F.multi_head_attention_forward``, used by ``nn.MultiheadAttention`` and the transformers.

Projections are contractions, heads work as in :mod:`maskgrad.semantics.attention`. The Boolean masks of this
function have the opposite polarity (True is excluded); they arrive as additive masks with -inf.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maskgrad.kernels.smallest import any_of
from maskgrad.semantics.attention import (
    GRADIENT,
    Bias,
    attend,
    bias_of,
    exists,
    softmax_of_scores,
    sums_of,
    weighted_sum,
)
from maskgrad.semantics.contractions import linear
from maskgrad.semantics.entries import Entries, Operand, as_entries, rearranged, values_of
from maskgrad.semantics.facts import record
from maskgrad.semantics.reductions import mean
from maskgrad.semantics.signatures import bound

PARAMETERS = inspect.signature(F.multi_head_attention_forward).parameters
SIGNATURE = " ".join(PARAMETERS)
DEFAULTS = {name: found.default for name, found in PARAMETERS.items() if found.default is not found.empty}


def multi_head_attention_forward(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Entries, Entries | None]:
    """All of torch's options. Letters: L queries, S keys, N batch, H heads, E features, D = E / H."""
    given = DEFAULTS | bound(SIGNATURE, args, kwargs)
    heads, need_weights, dropout_p = given["num_heads"], given["need_weights"], given["dropout_p"]
    query, key, value = (given[name] for name in ("query", "key", "value"))
    shown = (query, key, value, given["key_padding_mask"], given["attn_mask"])
    batched = F._mha_shape_check(*(None if x is None else values_of(x) for x in shown), heads)  # type: ignore[attr-defined]
    if not batched:
        query, key, value = (rearranged(x, lambda part: part.unsqueeze(1)) for x in (query, key, value))
    length, size, features = values_of(query).shape
    _check(given, features, values_of(key), values_of(value))
    bias = _bias(given, values_of(query).dtype, (size, heads, length, values_of(key).shape[0]))

    # Non-finite values in positions excluded for all queries must not reach the weights' gradients either.
    if bias.allowed is not None:
        reached = bias.allowed.expand(size, heads, length, values_of(key).shape[0]).any(1)  # N, L, S
        query = _blank(query, reached.any(2))
        key, value = _blank(key, reached.any(1)), _blank(value, reached.any(1))

    projected = _projected(given, query, key, value)
    q, *rest = (_by_head(x, heads) for x in projected)  # N, H, L or S, D
    k, v = (_static(given[name], x) for name, x in zip(("static_k", "static_v"), rest, strict=True))
    k, v, bias = _with_extra_keys(given, k, v, bias, heads)

    dropout_p = dropout_p if given["training"] else 0.0
    weights = None
    if need_weights:
        by_query, real = exists(q, k)
        taking_part = real if bias.allowed is None else real & bias.allowed
        served = by_query & any_of(taking_part, (-1,), keepdim=True)
        shares = softmax_of_scores(q, k, served, taking_part, bias.added, None)
        if dropout_p > 0:
            shares = F.dropout(shares, dropout_p)
        sums = weighted_sum(shares, taking_part & served, v)
        out = Entries(sums, sums_of(served, taking_part, v).expand(sums.shape))
        # An excluded key has torch's weight, 0; a masked key has none.
        weights = Entries(shares, (real & served).expand(shares.shape))
    else:
        out = attend(q, k, v, bias, dropout_p=dropout_p)
    out = Entries(*(part.permute(2, 0, 1, 3).flatten(2) for part in out))  # L, N, E
    out = linear(out, given["out_proj_weight"], given["out_proj_bias"])
    if weights is not None and given["average_attn_weights"]:
        weights = mean(weights, 1)
    if not batched:
        out = Entries(*(part.squeeze(1) for part in out))
        weights = None if weights is None else Entries(*(part.squeeze(0) for part in weights))
    return out, weights


def _check(given: dict[str, Any], features: int, key: Tensor, value: Tensor) -> None:
    """Check the same conditions as torch."""
    if features != given["embed_dim_to_check"]:
        raise AssertionError(
            f"was expecting embedding dimension of {given['embed_dim_to_check']}, but got {features}"
        )
    if features % given["num_heads"]:
        raise AssertionError(f"embed_dim {features} not divisible by num_heads {given['num_heads']}")
    if given["use_separate_proj_weight"]:
        if key.shape[:2] != value.shape[:2]:
            raise AssertionError(
                f"key's sequence and batch dims {key.shape[:2]} do not match value's {value.shape[:2]}"
            )
    elif key.shape != value.shape:
        raise AssertionError(f"key shape {key.shape} does not match value shape {value.shape}")
    for bias, other in (("bias_k", "bias_v"), ("bias_v", "bias_k")):
        if given[bias] is not None and given[other] is None:
            raise AssertionError(f"{bias} is set but {other} is None")


def _bias(given: dict[str, Any], dtype: torch.dtype, shape: tuple[int, int, int, int]) -> Bias:
    """Both masks as one, broadcastable to (N, H, L, S)."""
    size, heads, length, keys = shape
    padding, attention = given["key_padding_mask"], given["attn_mask"]
    if given["is_causal"] and attention is None:
        raise RuntimeError(
            "Need attn_mask if specifying the is_causal hint. "
            "You may use the Transformer module method `generate_square_subsequent_mask` to create this mask."
        )
    found = []
    if attention is not None:
        rank, dims = values_of(attention).ndim, values_of(attention).shape
        expected = (length, keys) if rank == 2 else (size * heads, length, keys)
        if tuple(dims) != expected:
            raise RuntimeError(f"The shape of the {rank}D attn_mask is {dims}, but should be {expected}.")
        found.append(
            _of(attention, dtype, (size, heads, length, keys) if rank == 3 else (1, 1, length, keys))
        )
    if padding is not None:
        found.append(_of(padding, dtype, (size, 1, 1, keys)))
    allowed = added = None
    for part in found:
        allowed = part.allowed if allowed is None or part.allowed is None else allowed & part.allowed
        added = part.added if added is None else added if part.added is None else added + part.added
    return Bias(allowed, added)


def _of(mask: Operand, dtype: torch.dtype, shape: tuple[int, ...]) -> Bias:
    """One mask: True is excluded here, so a Boolean one is negated."""
    values = values_of(mask)
    if values.dtype == torch.bool:
        values = ~values
    elif not values.is_floating_point():
        raise AssertionError("only bool and floating types of attention masks are supported")
    found = bias_of(Entries(values, mask.mask) if isinstance(mask, Entries) else values)
    return Bias(*(None if part is None else part.reshape(shape) for part in found))


def _blank(operand: Operand, wanted: Tensor) -> Operand:
    """Fill unused rows (…) of (rows, N, features) with zeros; the mask is kept."""
    rows = wanted.transpose(0, 1).unsqueeze(-1)
    values = torch.where(rows, values_of(operand), 0)
    return Entries(values, operand.mask) if isinstance(operand, Entries) else values


def _projected(given: dict[str, Any], query: Operand, key: Operand, value: Operand) -> tuple[Entries, ...]:
    """Queries, keys and values by head and feature: (rows, N, E)."""
    bias = given["in_proj_bias"]
    biases = (None, None, None) if bias is None else _chunks(bias)
    if given["use_separate_proj_weight"]:
        weights: list[Any] = [given[f"{letter}_proj_weight"] for letter in "qkv"]
        for letter, weight in zip("qkv", weights, strict=True):
            if weight is None:
                raise AssertionError(f"use_separate_proj_weight is True but {letter}_proj_weight is None")
    else:
        if given["in_proj_weight"] is None:
            raise AssertionError("use_separate_proj_weight is False but in_proj_weight is None")
        if _is_same(query, key) and _is_same(key, value):
            together = linear(query, given["in_proj_weight"], bias)
            return tuple(_chunks(together, -1))
        weights = _chunks(given["in_proj_weight"])
    operands = (query, key, value)
    return tuple(linear(x, w, b) for x, w, b in zip(operands, weights, biases, strict=True))


def _is_same(one: Operand, other: Operand) -> bool:
    if isinstance(one, Entries) and isinstance(other, Entries):
        return one.values is other.values and one.mask is other.mask
    return one is other


def _chunks(operand: Operand, dim: int = 0) -> list[Any]:
    if isinstance(operand, Entries):
        return [Entries(*parts) for parts in zip(*(part.chunk(3, dim) for part in operand), strict=True)]
    return list(operand.chunk(3, dim))


def _by_head(operand: Entries, heads: int) -> Entries:
    """(rows, N, H * D) as (N, H, rows, D); an expanded mask stays one."""
    return Entries(*(part.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3) for part in operand))


def _static(given: Operand | None, projected: Entries) -> Operand:
    """Keys or values (N * H, S, D) given already projected."""
    if given is None:
        return projected
    size, heads, _, width = projected.values.shape
    values = values_of(given)
    if values.shape[0] != size * heads or values.shape[2] != width:
        raise AssertionError(
            f"expecting static keys and values of shape ({size * heads}, S, {width}), but got {tuple(values.shape)}"
        )
    return rearranged(given, lambda part: part.unflatten(0, (size, heads)))  # type: ignore[no-any-return]


def _with_extra_keys(
    given: dict[str, Any], key: Operand, value: Operand, bias: Bias, heads: int
) -> tuple[Operand, Operand, Bias]:
    """Append the learned key and the zero key, which all queries may use."""
    extra: list[tuple[Operand, Operand]] = []
    shape = values_of(key).shape[:2]
    if given["bias_k"] is not None:
        if given["static_k"] is not None or given["static_v"] is not None:
            raise AssertionError("bias cannot be added to static key.")
        learned = [
            _by_head(Entries(*(part.reshape(1, 1, -1) for part in as_entries(given[name]))), heads)
            for name in ("bias_k", "bias_v")
        ]
        extra.append(
            tuple(Entries(*(part.expand(*shape, -1, -1) for part in x)) for x in learned)  # type: ignore[arg-type]
        )
    if given["add_zero_attn"]:
        zero = values_of(key).new_zeros(*shape, 1, values_of(key).shape[-1])
        extra.append((zero, zero))
    for more_keys, more_values in extra:
        key, value = _join(key, more_keys), _join(value, more_values)
        bias = Bias(
            None if bias.allowed is None else F.pad(bias.allowed, (0, 1), value=True),
            None if bias.added is None else F.pad(bias.added, (0, 1)),
        )
    return key, value, bias


def _join(operand: Operand, more: Operand) -> Operand:
    """Append rows; a mask that is one row wide stays so."""
    if not isinstance(operand, Entries) and not isinstance(more, Entries):
        return torch.cat([operand, more], -2)
    first, second = as_entries(operand), as_entries(more)
    narrow = all(part.mask.stride(-1) == 0 for part in (first, second))
    masks = [part.mask.narrow(-1, 0, 1) if narrow else part.mask for part in (first, second)]
    values = torch.cat([first.values, second.values], -2)
    return Entries(values, torch.cat(masks, -2).expand(values.shape))


def never_left_aligned(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Called by ``nn.TransformerEncoder`` before it packs a padded batch: False, as MaskedTensors are not packed."""
    return False


NAME = "nn.functional.multi_head_attention_forward"
PATTERN = "specified where the query has a key that takes part in at least one head"

OPERATIONS = (
    record(NAME, "attention", multi_head_attention_forward, PATTERN, GRADIENT, padded="mask"),
    record("_nested_tensor_from_mask_left_aligned", "attention", never_left_aligned, "no tensor: False"),
)
