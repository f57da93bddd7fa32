r"""Attention over packed rows: queries attend only to the keys of their own sequence.

.. math:: s_{ij} = \sigma\, q_i \cdot k_j + m_{ij}, \qquad p_{ij} = \frac{e^{s_{ij}}}{\sum_{j' \in J(i)} e^{s_{ij'}}},
          \qquad y_i = \sum_{j \in J(i)} p_{ij} v_j

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

import torch
from torch import Tensor

from maskgrad.kernels.attention.differentiable import differentiable, differentiable_attention
from maskgrad.kernels.attention.frames import framed, meeting, places_in_frame, served_in_frame, unframed
from maskgrad.kernels.attention.packed import packed_attention
from maskgrad.kernels.attention.varlen import fits_varlen, varlen_attention
from maskgrad.kernels.kernel import FLOATS
from maskgrad.kernels.selection import forced_body, is_invariant, loops_run
from maskgrad.kernels.smallest import smallest
from maskgrad.mode import is_plain

#: Products of a sequence of mean size that padding would have to waste, from which each sequence gets its own call.
LEAST = 196_608


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
    attn_mask = None if attn_mask is None else smallest(attn_mask)
    _check(query, key, value, query_offsets, key_offsets, longest_query, longest_key, attn_mask, is_causal)
    frame = (query, key, value, query_offsets, key_offsets, longest_query, longest_key, attn_mask)
    if (
        dropout_p == 0
        and query.is_cuda
        and fits_varlen(query, key, value, query_offsets, key_offsets, attn_mask)
    ):
        return varlen_attention(attended, query, key, value, query_offsets, longest_query, is_causal, scale)
    if dropout_p == 0 and is_packed(*frame):
        found = packed_attention(query, key, value, query_offsets, key_offsets, attn_mask, is_causal, scale)
        if found is not None:
            return differentiable(found, attended, *frame, is_causal, scale) if found.requires_grad else found
    return attended(*frame, is_causal, scale, dropout_p)


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
    attn_mask: Tensor | None,
    is_causal: bool,
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


def is_packed(
    query: Tensor, key: Tensor, value: Tensor, query_offsets: Tensor, key_offsets: Tensor, longest_query: int,
    longest_key: int, attn_mask: Tensor | None,
) -> bool:  # fmt: skip
    """Whether each sequence gets its own call: of large eager tensors on a CPU, where padding would waste much.

    The products saved must amortise one call per sequence. Only the mean of the lengths is known; if it equals the
    longest, all are equal, and there is one call.
    """
    if is_invariant() or not loops_run() or not (query.numel() and key.numel() and query.dtype in FLOATS):
        return False
    if not all(x is None or is_plain(x) for x in (query, key, value, query_offsets, key_offsets, attn_mask)):
        return False
    sequences = query_offsets.shape[0] - 1
    queries, keys = sequences * longest_query, sequences * longest_key
    products = longest_query * longest_key * query.shape[1] * query.shape[2]
    if (queries, keys) == (query.shape[0], key.shape[0]):
        saved: float = sequences * products
    else:
        saved = products * (1 - query.shape[0] / queries * key.shape[0] / keys)
    return saved >= LEAST or forced_body() == "cpu"


def attended(
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
