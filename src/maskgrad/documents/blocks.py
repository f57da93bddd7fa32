"""Block masks of FlexAttention, from documents, lengths and masks: in one pass over the offsets."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maskgrad.documents.numbering import Ways, numbered, starts
from maskgrad.masked_tensor import MaskedTensor
from maskgrad.patterns import JaggedPattern

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

__all__ = ["SIZE", "block_mask", "block_mask_of", "blocks_of"]

#: rows and columns of a block: FlexAttention's default
SIZE = 128


def block_mask(
    x: Tensor | MaskedTensor | None = None,
    segment_ids: Tensor | MaskedTensor | None = None,
    lengths: Tensor | None = None,
    causal: bool = False,
    window: int | None = None,
) -> BlockMask:
    r"""Return FlexAttention's ``BlockMask`` for attention within documents, or within sequences.

    .. math:: a_{b,q,k} = [d_{b,q} = d_{b,k} \ge 0] \cdot [q \ge k \text{ if causal}] \cdot [|q - k| < \text{window}]

    It is computed from where documents begin and end, without the T x T mask.

    Args:
        x: the batch, where it says which positions are there: a MaskedTensor (B, T, \*features); of layout
            ``torch.jagged``, the mask is that of its n rows (1, n), one sequence after the other. A plain tensor gives
            T for ``lengths``.
        segment_ids: integers (B, T), as for :func:`unpack_documents`; negative: padding.
        lengths: integers (B,), of padded sequences; T is that of ``x``, or the longest.
        causal: whether a position attends to itself and those before it only.
        window: how many positions a position attends to on each side, counting itself: ``sliding_window`` of
            transformers.

    Returns:
        ``torch.nn.attention.flex_attention.BlockMask`` (B, 1, T, T), with the same blocks (128 x 128) as that of
        ``create_block_mask``. Its ``mask_mod`` is exact within blocks. A query in the padding attends to nothing.

    Raises:
        TypeError: integers are expected, or ``x`` is needed.
        ValueError: documents as refused by :func:`unpack_documents`; ``segment_ids`` and ``lengths`` at once;
            ``window`` below 1.

    Dense equivalent: ``create_block_mask(mask_mod, B, None, T, T)``, which evaluates T x T entries.

    Example:
        >>> ids = torch.tensor([[0, 0, 1, -1]])
        >>> blocks = mg.block_mask(segment_ids=ids, causal=True)
        >>> torch.nn.attention.flex_attention.create_mask(blocks.mask_mod, 1, 1, 4, 4, "cpu").int().tolist()[0][0]
        [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]

    Source: https://docs.pytorch.org/docs/stable/nn.attention.flex_attention.html
    """
    line = "mg.block_mask({})"
    if window is not None and (not isinstance(window, int) or window < 1):
        raise ValueError(
            f"mg.block_mask: window counts positions, itself too, found {window!r}; write "
            + line.format("segment_ids=segment_ids, window=1")
        )
    if segment_ids is not None and lengths is not None:
        raise ValueError(
            "mg.block_mask: documents are given in 2 ways, segment_ids and lengths; write "
            + line.format("segment_ids=segment_ids")
        )
    if segment_ids is not None:
        device = x.device if x is not None else segment_ids.device
        frame = None if x is None else torch.Size(x.shape[:2])
        number = numbered(Ways(segment_ids), frame, device, line)
    elif lengths is not None:
        number = _of_lengths(lengths, None if x is None else x.shape[1])
    elif isinstance(x, MaskedTensor):
        number = _of_entries(x)
    else:
        raise TypeError(
            f"mg.block_mask: nothing says where documents are, found x of type {type(x).__name__}; write "
            + line.format("segment_ids=segment_ids")
        )
    return blocks_of(number, causal, window)


def _of_lengths(lengths: Any, size: int | None) -> Tensor:
    if not isinstance(lengths, Tensor) or lengths.is_floating_point() or lengths.ndim != 1:
        found = (
            f"{lengths.dtype} {tuple(lengths.shape)}"
            if isinstance(lengths, Tensor)
            else type(lengths).__name__
        )
        raise TypeError(
            f"mg.block_mask: lengths must be a tensor of integers (B,), found {found}; write "
            "mg.block_mask(lengths=torch.as_tensor(lengths).long().flatten())"
        )
    if size is None:
        size = int(lengths.max()) if lengths.numel() else 0
    inside = torch.arange(size, device=lengths.device) < lengths[:, None]
    return torch.where(inside, 0, -1)


def _of_entries(x: MaskedTensor) -> Tensor:
    """The number of each position's sequence: (B, T), or of the rows of a jagged tensor (1, n); -1: not specified."""
    if isinstance(x._pattern, JaggedPattern):
        return x._pattern.sequences()[None]
    mask = x.mask
    return torch.where(mask.flatten(2).any(2) if mask.ndim > 2 else mask, 0, -1)


def blocks_of(number: Tensor, causal: bool, window: int | None) -> BlockMask:
    """The block mask of documents, numbers (B, T), -1 for none; equal numbers of a row have only -1 between them."""
    rows, size = number.shape
    count = -(-size // SIZE)
    number = torch.nn.functional.pad(number, (0, count * SIZE - size), value=-1)
    place = torch.arange(count * SIZE, device=number.device)
    valid = number >= 0
    # Keys of a query lie between two positions that never fall from one valid query to the next, and the keys of all
    # queries of a block between those of its first and its last, as what lies between their keys is padding.
    low = _firsts(number, valid, place)
    high = place.expand_as(low)
    if not causal:
        high = count * SIZE - 1 - _firsts(number.flip(1), valid.flip(1), place).flip(1)
    if window is not None:
        low, high = torch.maximum(low, place - window + 1), torch.minimum(high, place + window - 1)
    of_block = valid.reshape(rows, count, SIZE)
    first = of_block.int().argmax(2)
    last = SIZE - 1 - of_block.flip(2).int().argmax(2)
    base = torch.arange(count, device=number.device) * SIZE
    low_first, low_last = (low.gather(1, base + at)[..., None] for at in (first, last))
    high_first, high_last = (high.gather(1, base + at)[..., None] for at in (first, last))
    before = torch.nn.functional.pad(valid.cumsum(1), (1, 0))  # keys in front of each position

    def keys(start: Tensor, end: Tensor) -> Tensor:
        return before.gather(1, end.flatten(1)) - before.gather(1, start.flatten(1))

    shape = (rows, count, count)
    start = torch.maximum(low_first, base).expand(shape)
    end = torch.maximum(start, torch.minimum(high_last + 1, base + SIZE).expand(shape))
    some = (keys(start, end).reshape(shape) > 0) & of_block.any(2)[..., None]
    whole = of_block.all(2)
    full = whole[:, :, None] & whole[:, None, :] & (low_last <= base) & (high_first >= base + SIZE - 1)
    mask_mod = _mask_mod(number, causal, window)
    return block_mask_of((some & ~full)[:, None], full[:, None], (size, size), (SIZE, SIZE), mask_mod)


def block_mask_of(
    partial: Tensor,
    full: Tensor,
    lengths: tuple[int, int],
    sizes: tuple[int, int],
    mask_mod: Callable[..., Tensor],
) -> BlockMask:
    """The block mask whose blocks (B, H, Q, K) are True where they are computed in part, or in full."""
    from torch.nn.attention.flex_attention import BlockMask

    blocks: dict[str, Any] = {}
    for name, chosen in (("", partial), ("full_", full)):
        for axis, lines in (("kv", chosen.int()), ("q", chosen.int().transpose(2, 3))):
            blocks[f"{name}{axis}_num_blocks"] = lines.sum(-1, dtype=torch.int32)
            blocks[f"{name}{axis}_indices"] = lines.argsort(dim=-1, descending=True, stable=True).int()
    return BlockMask(seq_lengths=lengths, BLOCK_SIZE=sizes, mask_mod=mask_mod, **blocks)


def _firsts(number: Tensor, valid: Tensor, place: Tensor) -> Tensor:
    """The first position of each valid position's document."""
    start, _ = starts(number, valid)
    return torch.where(start, place, 0).cummax(1).values if number.shape[1] else number


def _mask_mod(number: Tensor, causal: bool, window: int | None) -> Callable[..., Tensor]:
    def within(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        allowed = (number[b, q] == number[b, k]) & (number[b, q] >= 0)
        if causal:
            allowed = allowed & (q >= k)
        if window is not None:
            allowed = allowed & ((q - k).abs() < window)
        return allowed

    return within
