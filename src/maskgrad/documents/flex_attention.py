"""``torch.nn.attention.flex_attention`` of MaskedTensors: what ``scaled_dot_product_attention`` gives.

In eager code and on CPUs by its rule, with a ``score_mod`` by the formula; in a graph on a GPU by FlexAttention's
kernel, on filled rows and the blocks of specified positions, if no row is specified in part.
"""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from maskgrad.documents.blocks import SIZE, block_mask_of, blocks_of
from maskgrad.errors import UnsupportedOperationError
from maskgrad.kernels.smallest import smallest
from maskgrad.masked_tensor import MaskedTensor, masked
from maskgrad.masked_tensor.dispatch import ON_MASKED
from maskgrad.masked_tensor.tensor import of_entries
from maskgrad.masked_tensor.torch_patches import table
from maskgrad.masked_tensor.torch_patches.patch import Patch, rename
from maskgrad.mode import TRACED, mode
from maskgrad.patterns import BooleanPattern, JaggedPattern
from maskgrad.patterns.jagged import same_lengths
from maskgrad.semantics.attention import exists, sums_of, weighted_sum
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.products import sum_of_products

__all__ = ["PATCH"]

_MODULE = "torch.nn.attention.flex_attention"
Parts: TypeAlias = tuple[Any, Any, Any]
ScoreMod: TypeAlias = Callable[..., Tensor] | None
_ARGUMENTS = "query key value score_mod block_mask scale enable_gqa return_lse kernel_options"


def attend(
    original: Callable[..., Any], query: Any, key: Any, value: Any, score_mod: ScoreMod = None, block_mask: Any = None,
    scale: float | None = None, enable_gqa: bool = False, return_lse: bool = False, kernel_options: Any = None,
    **options: Any,
) -> Any:  # fmt: skip
    """The rule of ``flex_attention``; of jagged tensors ``block_mask`` is that of the batch, or of all rows."""
    if return_lse or options.get("return_aux") is not None:
        raise UnsupportedOperationError(
            "flex_attention(return_lse=True)",
            "it returns the attention alone",
            "For both, write flex_attention(query.filled(0), key.filled(0), value.filled(0), "
            "block_mask=mg.block_mask(x), return_lse=True).",
        )
    parts: Any = tuple(x if isinstance(x, MaskedTensor) else masked(x) for x in (query, key, value))
    pattern = _rows_of(parts)
    sizes = parts[0].shape[-2], parts[1].shape[-2]
    is_of_batch = block_mask is None or tuple(block_mask.shape[-2:]) == sizes
    if pattern is None and not is_of_batch:
        raise ValueError(
            f"flex_attention: block_mask is for {block_mask.shape[-2]} x {block_mask.shape[-1]} positions, found "
            f"{sizes[0]} x {sizes[1]}; for the batch x of query and key write block_mask=mg.block_mask(x)"
        )
    of_rows = pattern if not is_of_batch or (block_mask is None and score_mod is None) else None
    if mode() in TRACED and _kernel_runs(parts):
        found = _by_kernel(original, parts, of_rows, score_mod, block_mask, scale, enable_gqa, kernel_options)
        if of_rows is not None:
            return found
    elif block_mask is None and score_mod is None:
        return _dense(parts, None, None, scale, enable_gqa)
    elif of_rows is not None:
        rows: Any = tuple(masked(x._values.transpose(0, 1)[None]) for x in parts)
        found = _dense(rows, score_mod, _allowed(block_mask, rows, of_rows.sequences()), scale, enable_gqa)
        return _of_rows(found._values, found.mask, of_rows)
    else:
        whole: Any = tuple(x.to_dense() for x in parts)
        allowed = None if block_mask is None else _allowed(block_mask, whole)
        found = _dense(whole, score_mod, allowed, scale, enable_gqa)
    if pattern is None or block_mask is not None:
        return found
    return MaskedTensor(found._values.transpose(1, 2).flatten(0, 1).index_select(0, pattern.index), pattern)


def _rows_of(parts: Parts) -> JaggedPattern | None:
    """The pattern of (B, H, T, E) that are jagged in T with the same lengths; None if they are not."""
    patterns = [x._pattern for x in parts]
    first = patterns[0]
    if not isinstance(first, JaggedPattern):
        return None
    for other in patterns:
        if not isinstance(other, JaggedPattern) or other.at != (0, 2):
            return None
        if other.offsets is not first.offsets and not same_lengths(first, other):
            return None
    return first


def _of_rows(values: Tensor, mask: Tensor, pattern: JaggedPattern) -> MaskedTensor:
    """Jagged from (1, H, n, E) if all of it is specified, which only eager code knows; else with a Boolean mask."""
    rows, known = (part[0].transpose(0, 1) for part in (values, mask.expand(values.shape)))
    if mode() == "eager" and bool(known.all()):
        return MaskedTensor(rows, pattern)
    return of_entries(*(MaskedTensor(part.contiguous(), pattern)._dense()[0] for part in (rows, known)))


def _allowed(block_mask: Any, parts: Parts, sequences: Tensor | None = None) -> Tensor:
    """The Boolean mask (B or 1, H or 1, L, S) of a block mask, within sequences."""
    from torch.nn.attention.flex_attention import create_mask

    sizes = parts[0].shape[-2], parts[1].shape[-2]
    batch, heads = block_mask.shape[:2]
    allowed = create_mask(block_mask.mask_mod, batch, heads, *sizes, device=parts[0].device)
    return allowed if sequences is None else allowed & (sequences[:, None] == sequences)


def _dense(
    parts: Parts, score_mod: ScoreMod, allowed: Tensor | None, scale: float | None, enable_gqa: bool
) -> MaskedTensor:
    """The rule of ``scaled_dot_product_attention``, or with a ``score_mod`` its formula, on a Boolean mask."""
    query, key, value = parts
    if score_mod is None:
        found: Any = F.scaled_dot_product_attention(
            query, key, value, allowed, scale=scale, enable_gqa=enable_gqa
        )
        return found  # type: ignore[no-any-return]
    if enable_gqa:
        key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    q, k, v = (Entries(*x._dense()) for x in (query, key, value))
    by_query, taking_part = exists(q, k)
    if allowed is not None:
        taking_part = taking_part & allowed
    served = by_query & taking_part.any(-1, keepdim=True)
    scores = sum_of_products(lambda a, b: a @ b.transpose(-2, -1), (q, k))
    scores = _modified(scores * (q.values.shape[-1] ** -0.5 if scale is None else scale), score_mod)
    keep = taking_part & served
    nothing = torch.where(served, -torch.inf, 0.0).to(scores.dtype)
    weights = torch.softmax(torch.where(keep, scores, nothing), -1)
    values = weighted_sum(weights, keep, v)
    return of_entries(values, sums_of(served, taking_part, v).expand(values.shape))


def _modified(scores: Tensor, score_mod: Callable[..., Tensor]) -> Tensor:
    """``score_mod(score, batch, head, query, key)`` for each score, a function of 0-dim tensors."""
    function = score_mod
    for place in (4, 3, 2, 1):
        function = torch.vmap(function, tuple(0 if i in (0, place) else None for i in range(5)))
    return function(scores, *(torch.arange(size, device=scores.device) for size in scores.shape))


def _kernel_runs(parts: Parts) -> bool:
    """Whether FlexAttention's kernel is used: for rows that are specified as a whole; on a CPU it has no gradients."""
    if parts[0]._values.is_cpu:
        return False
    patterns = [x._pattern for x in parts]
    if all(isinstance(pattern, JaggedPattern) for pattern in patterns):
        return True
    masks = [smallest(pattern.mask) for pattern in patterns if isinstance(pattern, BooleanPattern)]
    return len(masks) == len(parts) and all(mask.shape[1] == mask.shape[-1] == 1 for mask in masks)


def _by_kernel(
    original: Callable[..., Any], parts: Parts, pattern: JaggedPattern | None, score_mod: ScoreMod, block_mask: Any,
    scale: float | None, enable_gqa: bool, kernel_options: Any,
) -> MaskedTensor:  # fmt: skip
    """FlexAttention on rows filled with 0, over the blocks that hold specified positions."""
    from torch.nn.attention.flex_attention import AuxRequest

    if pattern is not None:
        plain = [x._values.transpose(0, 1)[None] for x in parts]
        of_query = of_key = of_value = torch.ones(
            1, plain[0].shape[2], dtype=torch.bool, device=plain[0].device
        )
        own = blocks_of(pattern.sequences()[None], False, None)
    else:
        plain = [x.filled(0) for x in parts]
        of_query, of_key, of_value = (smallest(x.mask)[:, 0, :, 0].expand(len(x), x.shape[2]) for x in parts)
        own = _padded_blocks(of_query, of_key, (SIZE, SIZE) if block_mask is None else block_mask.BLOCK_SIZE)
    if block_mask is not None:
        own = _both(own, block_mask)
        # a key without a value counts in the softmax: which queries have a value would take all pairs
        torch._assert_async(
            (of_key == of_value).all(), "flex_attention: keys and values are specified elsewhere"
        )
    known = of_query[:, None] & (of_key & of_value).any(1)[:, None, None]
    if block_mask is None:
        values = original(*plain, score_mod, own, scale, enable_gqa, kernel_options=kernel_options)
    else:
        lse = AuxRequest(lse=True)
        values, aux = original(
            *plain, score_mod, own, scale, enable_gqa, kernel_options=kernel_options, return_aux=lse
        )
        known = known & (aux.lse != -torch.inf)
    mask = known[..., None].expand(values.shape)
    if pattern is None:
        return of_entries(values, mask)
    if block_mask is not None:
        return _of_rows(values, mask, pattern)
    return MaskedTensor(values[0].transpose(0, 1), pattern)


def _padded_blocks(of_query: Tensor, of_key: Tensor, sizes: tuple[int, int]) -> Any:
    by_block = []
    for valid, size in zip((of_query, of_key), sizes, strict=True):
        by_block.append(F.pad(valid, (0, -valid.shape[1] % size)).reshape(len(valid), -1, size))
    queries, keys = by_block
    some = queries.any(2)[:, None, :, None] & keys.any(2)[:, None, None]
    full = queries.all(2)[:, None, :, None] & keys.all(2)[:, None, None]

    def specified(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return of_query[b, q] & of_key[b, k]

    lengths = of_query.shape[1], of_key.shape[1]
    return block_mask_of(some & ~full, full, lengths, sizes, specified)


def _both(own: Any, given: Any) -> Any:
    """The intersection of two block masks, whose ``mask_mod`` is evaluated in each block."""

    def both(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        allowed: Tensor = own.mask_mod(b, h, q, k) & given.mask_mod(b, h, q, k)
        return allowed

    some = (own.to_dense() * given.to_dense()) > 0
    return block_mask_of(some, torch.zeros_like(some), own.seq_lengths, given.BLOCK_SIZE, both)


def _asked(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    return query, key, value


def _install() -> Callable[[], None]:
    """Let ``flex_attention`` ask Tensor-likes first, by PyTorch's own decorator, under every name it has."""
    original = pkgutil.resolve_name(f"{_MODULE}.flex_attention")
    asks = torch.overrides.wrap_torch_function(_asked)(original)
    ON_MASKED.append((asks, functools.partial(attend, original)))
    rename(original, asks)
    return functools.partial(rename, asks, original)


PATCH = Patch(
    target=f"{_MODULE}.flex_attention",
    reason="is compiled before a Tensor-like could answer, and fails in Dynamo",
    without="flex_attention refuses MaskedTensors; use torch.nn.functional.scaled_dot_product_attention",
    test="tests/unit/documents/test_flex_attention.py",
    needs={
        f"{_MODULE}.flex_attention": _ARGUMENTS,
        f"{_MODULE}.BlockMask": None,
        f"{_MODULE}.create_mask": None,
    },
    install=_install,
)
table.PATCHES.append(PATCH)
table.apply_all([PATCH])
