r"""Attention over packed rows: queries attend only to the keys of their own sequence.

.. math:: s_{ij} = \sigma\, q_i \cdot k_j + m_{ij}, \qquad p_{ij} = \frac{e^{s_{ij}}}{\sum_{j' \in J(i)} e^{s_{ij'}}},
          \qquad y_i = \sum_{j \in J(i)} p_{ij} v_j, \qquad \ell_i = \log \sum_{j \in J(i)} e^{s_{ij}}

.. math:: \bar v_j = \sum_i p_{ij} \bar y_i, \qquad
          \bar s_{ij} = p_{ij} \bigl(\bar y_i \cdot v_j - \bar y_i \cdot y_i\bigr), \qquad
          \bar q_i = \sigma \sum_j \bar s_{ij} k_j, \qquad \bar k_j = \sigma \sum_i \bar s_{ij} q_i

with J(i) the keys of i's sequence that no mask forbids, and :math:`\sigma` the scale, 1/sqrt(E) unless given. A query
whose J(i) is empty gives zeros, and gives and gets no gradient.

Shapes: query (N, H, E), key (M, H, E), value (M, H, Ev): the concatenated rows of all sequences; the queries of
sequence b are rows ``query_offsets[b]`` to ``query_offsets[b + 1]``, its keys likewise; offsets (B + 1,) are int64.
``longest_query`` (L) and ``longest_key`` (S) are at least as large as any length: nothing is read from a device.
``attn_mask`` refers to positions within a sequence and broadcasts to (B, H, L, S): Boolean (True takes part) or added
to the scores (-inf excludes). Rows that no query uses get a zero gradient, whatever they contain, if their sequence has
no queries; keys that only a mask excludes must be finite, as in PyTorch.

Sources: Vaswani et al., Attention Is All You Need (2017), eq. 1; Dao et al., FlashAttention (2022), appendix B.2.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.attention.differentiable import differentiable_attention
from maskgrad.kernels.attention.frames import (
    framed,
    meeting,
    places_in_frame,
    served_in_frame,
    unframed,
)
from maskgrad.kernels.attention.varlen import fits_varlen, varlen_attention
from maskgrad.kernels.kernel import FLOATS, HALVES, kernel
from maskgrad.kernels.smallest import smallest
from maskgrad.mode import TRACED, mode

_ROWS = "Tensor query, Tensor key, Tensor value"
_OPTIONS = (
    "Tensor query_offsets, Tensor key_offsets, SymInt longest_query, SymInt longest_key, "
    "Tensor? attn_mask=None, bool is_causal=False, float? scale=None"
)


def ragged_scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_offsets: Tensor,
    key_offsets: Tensor,
    longest_query: int,
    longest_key: int,
    attn_mask: Tensor | None = None,
    *,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """``F.scaled_dot_product_attention`` of each sequence of packed rows (N, H, Ev), with the same options.

    ``key`` and ``value`` have as many heads as ``query``, or, with ``enable_gqa``, a number that divides it. If queries
    and keys have the same offsets, pass the same tensor for both: then rows need not be checked for
    having keys.
    """
    heads = query.shape[1]
    if enable_gqa and key.shape[1] != heads:
        if not key.shape[1] or heads % key.shape[1]:
            raise ValueError(
                f"the number of heads in key and value must divide that in query, found {key.shape[1]} and {heads}"
            )
        key, value = (x.repeat_interleave(heads // key.shape[1], 1) for x in (key, value))
    if attn_mask is not None:
        attn_mask = smallest(attn_mask)
        if mode() in TRACED:  # graphs take an operator only if its last operand is contiguous
            attn_mask = attn_mask.contiguous()
    frame = (query_offsets, key_offsets, longest_query, longest_key)
    if dropout_p > 0:
        _check(query, key, value, *frame, attn_mask, is_causal)
        return _attended(query, key, value, *frame, attn_mask, is_causal, scale, dropout_p)
    if query.is_cuda and fits_varlen(query, key, value, query_offsets, key_offsets, attn_mask):
        _check(query, key, value, *frame, attn_mask, is_causal)
        return varlen_attention(_attended, query, key, value, query_offsets, longest_query, is_causal, scale)
    return ragged_attention(query, key, value, *frame, attn_mask, is_causal, scale)[0]


def served_rows(
    query_offsets: Tensor,
    key_offsets: Tensor,
    longest_query: int,
    longest_key: int,
    number: int,
    attn_mask: Tensor | None = None,
) -> Tensor | None:
    """Return which of the ``number`` query rows have a key that takes part (N, H or 1); None if all have one.

    ``is_causal`` changes nothing: each query sees position 0.
    """
    if attn_mask is None and query_offsets is key_offsets:
        return None
    served = served_in_frame(key_offsets, longest_key, None if attn_mask is None else smallest(attn_mask))
    frame = served.expand(-1, -1, longest_query).unsqueeze(-1)
    return unframed(frame, places_in_frame(query_offsets, longest_query, number)).squeeze(-1)


def _check(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_offsets: Tensor,
    key_offsets: Tensor,
    longest_query: int,
    longest_key: int,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> None:
    """Raise a TypeError or ValueError unless the arguments fit together; reads nothing from a device."""
    shapes = [tuple(x.shape) for x in (query, key, value)]
    if not (
        query.ndim == key.ndim == value.ndim == 3
        and query.shape[1:] == key.shape[1:]
        and key.shape[:2] == value.shape[:2]
    ):
        raise ValueError(
            "query, key and value must be packed rows (N, H, E), (M, H, E) and (M, H, Ev); got "
            f"{', '.join(map(str, shapes))}; fewer heads in key and value need enable_gqa=True"
        )
    if not query.dtype == key.dtype == value.dtype:
        raise TypeError(
            f"query, key and value must have one dtype; got {query.dtype}, {key.dtype} and {value.dtype}"
        )
    if query_offsets.ndim != 1 or query_offsets.shape != key_offsets.shape:
        raise ValueError(
            "query_offsets and key_offsets must both be (B + 1,), for the same B sequences; got "
            f"{tuple(query_offsets.shape)} and {tuple(key_offsets.shape)}"
        )
    if query_offsets.dtype != torch.int64 or key_offsets.dtype != torch.int64:
        raise TypeError(
            f"query_offsets and key_offsets must be int64; got {query_offsets.dtype} and {key_offsets.dtype}"
        )
    if attn_mask is None:
        return
    if is_causal:
        raise ValueError("attn_mask and is_causal cannot both be given; put the causal order into attn_mask")
    if attn_mask.dtype not in (torch.bool, torch.float32, query.dtype):
        raise TypeError(
            f"attn_mask must be Boolean (True takes part), float32 or {query.dtype}; got {attn_mask.dtype}"
        )
    frame = (query_offsets.shape[0] - 1, query.shape[1], longest_query, longest_key)
    if attn_mask.ndim > 4 or any(
        size != 1 and size != wanted for size, wanted in zip(attn_mask.shape[::-1], frame[::-1], strict=False)
    ):
        raise ValueError(
            f"attn_mask must broadcast to (B, H, longest_query, longest_key), {frame}; got {tuple(attn_mask.shape)}"
        )


def fits_fused(
    query: Tensor, key: Tensor, value: Tensor, query_offsets: Tensor, key_offsets: Tensor, longest_query: int,
    longest_key: int, attn_mask: Tensor | None = None, is_causal: bool = False, scale: float | None = None,
) -> bool:  # fmt: skip
    """Whether PyTorch's fused attention for CPUs (one head size, no gradient of the mask) supports these arguments."""
    return query.shape[2] == value.shape[2] and (attn_mask is None or not attn_mask.requires_grad)


def _spared(
    query: Tensor, key: Tensor, value: Tensor, query_offsets: Tensor, key_offsets: Tensor, longest_query: int,
    longest_key: int, attn_mask: Tensor | None = None, is_causal: bool = False, scale: float | None = None,
) -> int:  # fmt: skip
    """The number of products of a sequence of mean size, for the size check of the kernel.

    The products must amortise one call per sequence. Only the mean of the lengths is known; if it equals the longest,
    all are equal, and there is one call.
    """
    if mode() in TRACED:
        return query.numel()  # sizes are not read
    sequences = query_offsets.shape[0] - 1
    products = longest_query * longest_key * query.shape[1] * query.shape[2]
    queries, keys = sequences * longest_query, sequences * longest_key
    if (queries, keys) == (query.shape[0], key.shape[0]):
        number = sequences * products
    elif queries and keys:
        number = int(products * max(1 - query.shape[0] / queries * key.shape[0] / keys, 0))
    else:
        number = 0
    return number


@kernel(
    f"({_ROWS}, {_OPTIONS}) -> (Tensor, Tensor)",
    FLOATS,
    least=196_608,
    in_graphs=0,
    numbers=_spared,
    check=_check,
    when=fits_fused,
)
def ragged_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_offsets: Tensor,
    key_offsets: Tensor,
    longest_query: int,
    longest_key: int,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Weighted sums (N, H, Ev) of each sequence's values, and what the compiled derivative needs (N, H).

    The second result is the logarithms of the sums of exponentials, without a gradient; the reference gives zeros.
    """
    frame = (query_offsets, key_offsets, longest_query, longest_key)
    result = _attended(query, key, value, *frame, attn_mask, is_causal, scale)
    return result, query.new_zeros(query.shape[:2], dtype=wide(query.dtype))


def _attended(
    query: Tensor, key: Tensor, value: Tensor, query_offsets: Tensor, key_offsets: Tensor, longest_query: int,
    longest_key: int, attn_mask: Tensor | None, is_causal: bool, scale: float | None, dropout_p: float = 0.0,
) -> Tensor:  # fmt: skip
    """Copy the rows to a padded frame, in which keys beyond the end of a sequence are masked, and back."""
    sequences = query_offsets.shape[0] - 1
    at, key_at, served, parts = _blank(
        query, key, value, query_offsets, key_offsets, longest_query, longest_key, attn_mask
    )
    q = framed(parts[0], at, sequences, longest_query)
    k, v = (framed(x, key_at, sequences, longest_key) for x in parts[1:])
    taking_part = meeting(key_offsets, longest_query, longest_key, attn_mask, is_causal)
    has_keys = served_in_frame(key_offsets, longest_key, attn_mask).unsqueeze(-1)
    # A query without keys attends to all of them: its result is discarded, and its derivatives are finite.
    mask = taking_part | ~has_keys
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        added = torch.where(taking_part & has_keys, attn_mask, 0).to(query.dtype)
        mask = torch.where(mask, added, -torch.inf)
    found = unframed(differentiable_attention(q, k, v, mask, dropout_p, scale), at)
    return found if served is None else torch.where(served, found, 0)


def _blank(
    query: Tensor, key: Tensor, value: Tensor, query_offsets: Tensor, key_offsets: Tensor, longest_query: int,
    longest_key: int, attn_mask: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None, tuple[Tensor, Tensor, Tensor]]:  # fmt: skip
    """Positions of queries and of keys, which queries have keys (N, H or 1, 1), and zeros in unused rows."""
    at = places_in_frame(query_offsets, longest_query, query.shape[0])
    same = query_offsets is key_offsets and longest_query is longest_key
    key_at = at if same else places_in_frame(key_offsets, longest_key, key.shape[0])
    rows = served_rows(query_offsets, key_offsets, longest_query, longest_key, query.shape[0], attn_mask)
    if rows is None:
        return at, key_at, None, (query, key, value)
    served = rows.unsqueeze(-1)
    if query_offsets is not key_offsets:
        asked = served_rows(key_offsets, query_offsets, longest_key, longest_query, key.shape[0])
        assert asked is not None
        key, value = (torch.where(asked.unsqueeze(-1), x, 0) for x in (key, value))
    return at, key_at, served, (torch.where(served, query, 0), key, value)


@kernel(
    f"(Tensor grad, {_ROWS}, Tensor output, Tensor logsumexp, {_OPTIONS}) -> (Tensor, Tensor, Tensor)",
    FLOATS,
    least=1,
    in_graphs=0,
    leading=1,
)
def ragged_attention_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    logsumexp: Tensor,
    query_offsets: Tensor,
    key_offsets: Tensor,
    longest_query: int,
    longest_key: int,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, key and value from that of the ``output``.

    ``output`` and ``logsumexp`` save the compiled implementation a pass; they are recomputed here for their gradients.
    """
    sequences, factor = query_offsets.shape[0] - 1, query.shape[2] ** -0.5 if scale is None else scale
    at, key_at, served, parts = _blank(
        query, key, value, query_offsets, key_offsets, longest_query, longest_key, attn_mask
    )
    if served is not None:
        grad = torch.where(served, grad, 0)
    accurate = wide(query.dtype)
    q, g = (framed(x.to(accurate), at, sequences, longest_query) for x in (parts[0], grad))
    k, v = (framed(x.to(accurate), key_at, sequences, longest_key) for x in parts[1:])
    taking_part = meeting(key_offsets, longest_query, longest_key, attn_mask, is_causal)
    has_keys = served_in_frame(key_offsets, longest_key, attn_mask).unsqueeze(-1)
    scores = factor * (q @ k.transpose(-2, -1))
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        scores = scores + torch.where(taking_part, attn_mask, 0)
    weights = torch.softmax(torch.where(taking_part | ~has_keys, scores, -torch.inf), -1)
    of_weights = g @ v.transpose(-2, -1)
    of_scores = factor * weights * (of_weights - (weights * of_weights).sum(-1, keepdim=True))
    of_query = unframed(of_scores @ k, at)
    of_key, of_value = (
        unframed(x, key_at) for x in (of_scores.transpose(-2, -1) @ q, weights.transpose(-2, -1) @ g)
    )
    return of_query.to(query.dtype), of_key.to(query.dtype), of_value.to(query.dtype)


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which sums are taken."""
    return torch.float32 if dtype in HALVES else dtype


def _fake(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    rows = query.shape[:2]
    return query.new_empty((*rows, value.shape[2])), query.new_empty(rows, dtype=wide(query.dtype))


def _fake_backward(grad: Tensor, *parts: Tensor, **_: Any) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = (x.new_empty(x.shape) for x in parts[:3])
    return query, key, value


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, query_offsets, key_offsets, *ctx.longest, attn_mask, ctx.is_causal, ctx.scale = inputs
    if attn_mask is not None and attn_mask.requires_grad:
        raise RuntimeError(
            "the operator gives attn_mask no gradient; call maskgrad.kernels.ragged_attention, which then runs its "
            "reference, or detach the mask"
        )
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(query, key, value, *output, query_offsets, key_offsets, attn_mask)


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    *tensors, attn_mask = ctx.saved_tensors
    # The operator, as in the forward pass: a gradient may have strides that graphs do not take.
    found = torch.ops.maskgrad.ragged_attention_backward(
        grad, *tensors, *ctx.longest, attn_mask, ctx.is_causal, ctx.scale
    )
    return *found, *[None] * 7


# Measured on one core with the gradient, in milliseconds, reference / compiled, lengths from 0.3 to 1 of the longest:
# 64 sequences of at most 32 positions, 4 heads of 32: 8.1 / 11.7, of 48 13.3 / 13.8, of 64 21.7 / 17.3. Moving
# all rows to group sequences by length was slower than either where it made fewer calls.
ragged_attention.fake, ragged_attention_backward.fake = _fake, _fake_backward
ragged_attention.derive(_save, _backward)
ragged_attention_backward.derive_through_reference()
