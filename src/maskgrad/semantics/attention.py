"""Attention: a key takes part for a query where their product exists and no mask forbids it.

Scores follow the rule of contractions: the score of a query and a key exists if at least one of its products has two
specified factors. Scores that do not exist, or are excluded, are deleted from the softmax; a query without keys
is unspecified. The weighted sum of the values is a contraction again: an unspecified value entry does not contribute,
and does not change the weights.

A Boolean ``attn_mask`` excludes where False, an additive one where -inf, the form in which PyTorch's modules pass
Boolean masks on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from maskgrad.kernels.attention.differentiable import differentiable_attention
from maskgrad.kernels.filling.finite import is_finite
from maskgrad.kernels.invariant import is_invariant
from maskgrad.kernels.smallest import any_of, in_rows, smallest
from maskgrad.mode import can_read
from maskgrad.semantics.entries import Entries, Operand, rearranged, safe, values_of
from maskgrad.semantics.facts import record
from maskgrad.semantics.products import NONE_AT_ALL, sum_of_products


class Bias(NamedTuple):
    """An attention mask in two parts that broadcast to (…, L, S).

    Attributes:
        allowed: which keys a query may use, None if it may use all.
        added: what is added to the scores, finite where allowed; None if nothing is added.
    """

    allowed: Tensor | None
    added: Tensor | None


def bias_of(attn_mask: Operand | None) -> Bias:
    """Read an attention mask of torch's kind: Boolean (True takes part) or added to the scores (-inf excludes).

    Entries that a mask leaves unspecified are unknown scores: the key takes no part.
    """
    if attn_mask is None:
        return Bias(None, None)
    values = values_of(attn_mask)
    if values.dtype == torch.bool:
        return Bias(values & attn_mask.mask if isinstance(attn_mask, Entries) else values, None)
    allowed = values != -torch.inf
    if isinstance(attn_mask, Entries):
        allowed = allowed & attn_mask.mask
    return Bias(allowed, torch.where(allowed, values, 0))


def rows_of(operand: Operand) -> Tensor:
    """Return which rows (…, N, 1) of a matrix (…, N, features) have a specified entry."""
    if not isinstance(operand, Entries):
        return torch.ones((), dtype=torch.bool, device=operand.device).expand(*operand.shape[-2:-1], 1)
    mask = smallest(operand.mask)
    return mask if mask.shape[-1] == 1 else any_of(mask, (-1,), keepdim=True)


def _whole_rows(operand: Operand) -> bool:
    """Return whether each row is known to be fully specified or fully masked, from the strides of the mask alone."""
    return not isinstance(operand, Entries) or in_rows(operand.mask)


def exists(query: Operand, key: Operand) -> tuple[Tensor, Tensor]:
    """Which scores exist: by query (…, L, 1), and (…, L or 1, S); no L x S tensor for whole rows."""
    if _whole_rows(query) or _whole_rows(key):
        return rows_of(query), rows_of(key).transpose(-2, -1)
    assert isinstance(query, Entries)
    assert isinstance(key, Entries)
    met = query.mask.float() @ key.mask.float().transpose(-2, -1) > NONE_AT_ALL
    return any_of(met, (-1,), keepdim=True), met


def attend(
    query: Operand,
    key: Operand,
    value: Operand,
    bias: Bias,
    *,
    dropout_p: float = 0.0,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Entries:
    """The weighted sums (…, L, Ev) of the values (…, S, Ev) for each query (…, L, E)."""
    if enable_gqa:
        key, value = (_per_query_head(operand, values_of(query).shape[-3]) for operand in (key, value))
    by_query, taking_part = exists(query, key)
    if bias.allowed is not None:
        taking_part = taking_part & bias.allowed
    has_keys = any_of(taking_part, (-1,), keepdim=True)
    served = by_query & has_keys
    added = None if bias.added is None else torch.where(served, bias.added, 0)
    mask = None
    if isinstance(key, Entries) or bias.allowed is not None:
        # A query without keys attends to all of them: its result is masked, and its derivatives are finite.
        mask = taking_part | ~has_keys
        if added is not None:
            mask = torch.where(mask, added, -torch.inf)
    # Whole rows of finite numbers stay as they are, unless their products are not finite.
    given = (query, key, value)
    may_stay = not is_invariant() and all(_whole_rows(x) and is_finite(values_of(x)) for x in given)
    for stay in (True, False) if may_stay else (False,):
        query, key, value = given if stay else _filled(given, served, taking_part)
        parts = (values_of(query), values_of(key), values_of(value))
        result = differentiable_attention(*parts, mask, dropout_p, scale)
        if not can_read(result) or is_finite(result):
            break
    else:
        weights = softmax_of_scores(query, key, served, taking_part, added, scale)
        result = weighted_sum(torch.dropout(weights, dropout_p, dropout_p > 0), taking_part & served, value)
    return Entries(result, sums_of(served, taking_part, value).expand(result.shape))


def _filled(operands: Sequence[Operand], served: Tensor, taking_part: Tensor) -> Sequence[Operand]:
    """Query, key and value with zeros in unspecified entries and in unused rows."""
    query, key, value = operands
    # NaN in a plain key would come back through 0 * NaN
    used = taking_part & (served if taking_part.shape[-2] > 1 else served.any(-2, keepdim=True))
    used = used.any(-2).unsqueeze(-1)
    return _rows_kept(query, served), _rows_kept(key, used), _rows_kept(value, used)


def _rows_kept(operand: Operand, rows: Tensor) -> Operand:
    """Fill unspecified entries, and rows that are not kept, with zeros."""
    if not isinstance(operand, Entries):
        return torch.where(rows, operand, 0)
    if _whole_rows(operand):  # one selection for both
        values = torch.where(rows & smallest(operand.mask), operand.values, 0)
    else:
        values = torch.where(rows, safe(operand), 0)
    return Entries(values, operand.mask.expand(values.shape))


def softmax_of_scores(
    query: Operand,
    key: Operand,
    served: Tensor,
    taking_part: Tensor,
    added: Tensor | None,
    scale: float | None,
) -> Tensor:
    """The weights (…, L, S), step by step: NaN in a key disturbs only those who use it, and weights of 0 are exact."""
    factor = values_of(query).shape[-1] ** -0.5 if scale is None else scale
    scores = sum_of_products(lambda q, k: q @ k.transpose(-2, -1), (query, key)) * factor
    if added is not None:
        scores = scores + added
    keep = taking_part & served
    return torch.softmax(torch.where(keep, scores, torch.where(served, -torch.inf, 0.0).to(scores.dtype)), -1)


def weighted_sum(weights: Tensor, present: Tensor, value: Operand) -> Tensor:
    """The contraction of weights that are specified where ``present`` with values."""
    return sum_of_products(torch.matmul, (Entries(weights, present.expand(weights.shape)), value))


def sums_of(served: Tensor, taking_part: Tensor, value: Operand) -> Tensor:
    """Return which sums have at least one weight and one value: (…, L, Ev or 1)."""
    if not isinstance(value, Entries):
        return served
    if _whole_rows(value):
        return served & any_of(taking_part & rows_of(value).transpose(-2, -1), (-1,), keepdim=True)
    return served & (torch.matmul(taking_part.float(), value.mask.float()) > NONE_AT_ALL)


def _per_query_head(operand: Operand, heads: int) -> Operand:
    """Keys or values (…, H, S, E) repeated for the query heads that share them."""
    own = values_of(operand).shape[-3]
    if own == heads:
        return operand
    if own == 0 or heads % own:
        raise RuntimeError(
            f"Number of heads in key and value must divide the number of heads in query, got {own} and {heads}"
        )
    return rearranged(operand, lambda part: part.repeat_interleave(heads // own, -3))  # type: ignore[no-any-return]


def scaled_dot_product_attention(
    function: Callable[..., Any],
    query: Operand,
    key: Operand,
    value: Operand,
    attn_mask: Operand | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> Entries:
    """``F.scaled_dot_product_attention`` with all its options."""
    if is_causal and attn_mask is not None:  # torch raises the error
        plain = values_of(attn_mask)
        function(*(safe(x) for x in (query, key, value)), attn_mask=plain, is_causal=True)
    bias = bias_of(attn_mask)
    if is_causal:
        lengths = values_of(query).shape[-2], values_of(key).shape[-2]
        bias = Bias(torch.ones(lengths, dtype=torch.bool, device=values_of(query).device).tril(), None)
    return attend(query, key, value, bias, dropout_p=dropout_p, **options)


PATTERN = "specified where the query has a key that takes part, with a specified value"
GRADIENT = "torch's, over the keys that take part"
NAME = "nn.functional.scaled_dot_product_attention"
OPERATIONS = (record(NAME, "attention", scaled_dot_product_attention, PATTERN, GRADIENT, padded="mask"),)
