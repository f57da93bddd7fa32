"""The same batch with other contents in its padding, more columns of it or none, other rows, or empty rows."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from maskgrad.doctor.batches import Key, applied, fields, parts, ragged, replaced, tensor_of, with_parts
from maskgrad.doctor.padding import Padding
from maskgrad.masked_tensor import MaskedTensor, masked

__all__ = [
    "KINDS", "Narrowed", "by_columns", "emptied", "narrowed", "other_contents", "pads_left", "rows_of", "selected",
    "widened",
]  # fmt: skip

#: what is written over padding, and how a report calls it
KINDS = {
    "numbers": "different values and ids",
    "large": "values ten thousand times as large and different ids",
    "nan": "NaN",
    "inf": "infinity",
}
_LARGE = 1e4


def other_contents(tensor: Tensor, real: Tensor, kind: str, seed: int = 0) -> Tensor | None:
    """A copy of ``tensor`` with other values where ``real`` is False; None if no other contents are possible.

    Args:
        tensor: tensor of any dtype.
        real: Boolean tensor of its shape.
        kind: one of :data:`KINDS`; integers have no NaN and no infinity.
        seed: other numbers for another seed; the program's generators are left alone.
    """
    generator = torch.Generator().manual_seed(0x5EED + seed)
    if bool(real.all()):
        return None
    if tensor.is_floating_point() or tensor.is_complex():
        return torch.where(real, tensor, _numbers(tensor, real, kind, generator))
    if kind in ("nan", "inf"):
        return None
    if tensor.dtype == torch.bool:
        return torch.where(real, tensor, ~tensor)
    return _ids(tensor, real, generator)


def _numbers(tensor: Tensor, real: Tensor, kind: str, generator: torch.Generator) -> Tensor:
    if kind in ("nan", "inf"):
        return torch.full_like(tensor, float(kind))
    size = float(torch.where(real, tensor, 0).abs().max())
    if not math.isfinite(size):
        size = float(torch.where(real & tensor.isfinite(), tensor, 0).abs().max())
    size = size or 1.0
    numbers = torch.randn(tensor.shape, generator=generator, dtype=torch.float64).mul_(size)
    if kind == "large":
        limit = torch.finfo(tensor.dtype).max / 16
        numbers.mul_(_LARGE).clamp_(-limit, limit)
    return numbers.to(tensor)


def _ids(tensor: Tensor, real: Tensor, generator: torch.Generator) -> Tensor | None:
    """Ids that the batch has elsewhere, so that every table has them, and never the present one."""
    known = tensor[real].unique()
    if known.numel() < 2:
        # a single id: whatever lies between 0 and the largest number seen is in the table too
        known = torch.arange(max(2, int(tensor.max()) + 1), device=tensor.device, dtype=tensor.dtype)
        known = known[: max(2, int(tensor[real].max()) + 1)] if real.any() else known[:2]
    drawn = torch.randint(known.numel(), tensor.shape, generator=generator).to(tensor.device)
    ids, following = known[drawn], known[(drawn + 1) % known.numel()]
    return torch.where(real, tensor, torch.where(ids == tensor, following, ids))


def rows_of(batch: Any, paddings: Sequence[Padding]) -> int:
    """The number of samples: the first dimension of the masks, else of most tensors; 0 if there is none."""
    sizes = [padding.mask.shape[0] for padding in paddings if padding.mask.ndim]
    sizes = sizes or [
        tensor.shape[0] for field in fields(batch).values() if (tensor := tensor_of(field)).ndim
    ]
    sizes = sizes or [_count(held) for held in ragged(batch).values()]
    return max(set(sizes), key=sizes.count) if sizes else 0


def _count(held: Any) -> int:
    return int(held.batch_sizes[0] if isinstance(held, PackedSequence) else held.size(0))


def selected(batch: Any, rows: Tensor, count: int) -> Any:
    """The batch with the given rows, in their order, of all tensors with ``count`` of them."""
    new: dict[Key, Any] = {
        key: applied(field, itemgetter(rows.to(tensor_of(field).device)))
        for key, field in fields(batch).items()
        if tensor_of(field).ndim and field.shape[0] == count
    }
    new |= {key: _chosen(held, rows) for key, held in ragged(batch).items() if _count(held) == count}
    return _with_lists(replaced(batch, new), rows.tolist(), count)


def _with_lists(batch: Any, rows: list[int], count: int) -> Any:
    """The batch in which lists of one thing for each sample, texts for instance, have the rows, too."""
    new = {}
    for key, part in parts(batch):
        if (
            type(part) in (list, tuple)
            and len(part) == count
            and not any(
                isinstance(held, Tensor) and len(held.shape) and held.shape[0] == count for held in part
            )
        ):
            new[key] = type(part)(part[row] for row in rows)
        else:
            other = _with_lists(part, rows, count) if parts(part) else part
            if other is not part:
                new[key] = other
    return with_parts(batch, new) if new else batch


def _chosen(held: Any, rows: Tensor) -> Any:
    """Rows of samples that lie one after the other."""
    if isinstance(held, PackedSequence):
        padded, lengths = pad_packed_sequence(held)
        return pack_padded_sequence(padded[:, rows], lengths[rows], enforce_sorted=False)
    if isinstance(held, MaskedTensor):
        return held[rows]
    samples = held.unbind()
    return torch.nested.nested_tensor([samples[row].detach() for row in rows.tolist()], layout=held.layout)


def pads_left(paddings: Sequence[Padding]) -> bool:
    """Whether padding is at the beginning of the sequences, and nowhere at their end."""
    # labels that are ignored at the beginning are those of a prompt, which is read
    masks = [
        padding.mask
        for padding in paddings
        if padding.mask.ndim == 2 and padding.mask.numel() and not padding.source.startswith("labels")
    ]
    return (
        bool(masks)
        and all(bool(mask[:, -1].all()) for mask in masks)
        and not all(bool(mask[:, 0].all()) for mask in masks)
    )


def by_columns(paddings: Sequence[Padding]) -> list[list[Padding]]:
    """The paddings, once for each number of columns, those that have it first: an encoder's and a decoder's differ."""
    sizes = {id(padding): _columns(padding.mask)[1] for padding in paddings}
    return [
        sorted(paddings, key=lambda padding: sizes[id(padding)] != size)
        for size in dict.fromkeys(sizes.values())
        if size
    ]


def _columns(mask: Tensor) -> tuple[int, int]:
    """The axis of the positions, and how many there are; a mask for all channels, (B, 1, T), has them later."""
    return next(((axis, size) for axis, size in enumerate(mask.shape) if axis and size > 1), (0, 0))


def widened(
    batch: Any, paddings: Sequence[Padding], *, left: bool, count: int = 1
) -> tuple[Any, tuple[int, int]] | None:
    """The batch with more columns of padding where the first of ``paddings`` has its own, and rows and columns before.

    None without columns.
    """
    masks = [padding.mask for padding in paddings if _columns(padding.mask)[1]]
    if not masks:
        return None
    columns = _columns(masks[0])[1]
    rows = masks[0].shape[0]
    by_key = {padding.key: padding for padding in paddings}
    mask_values = _mask_values(paddings)

    def wider(tensor: Tensor, key: Key, axes: Sequence[int]) -> Tensor:
        if len(axes) == 2:
            return _wider_pairs(tensor, axes, mask_values.get(key), left=left, count=count)
        column = _column(tensor, axes[0], key, by_key, mask_values, masks[0]).repeat_interleave(
            count, axes[0]
        )
        return torch.cat([column, tensor] if left else [tensor, column], axes[0])

    new = {
        key: applied(field, partial(wider, key=key, axes=axes))
        for key, field, axes in _with_columns(batch, masks[0], by_key, mask_values)
    }
    return replaced(batch, new), (rows, columns)


def _wider_pairs(
    tensor: Tensor, axes: Sequence[int], hidden: float | None, *, left: bool, count: int
) -> Tensor:
    """A mask for pairs of positions with more of them: causal as before, else the new ones are hidden."""
    size = tensor.shape[axes[0]]
    flat = tensor.movedim(tuple(axes), (0, 1)).reshape(size, size, -1)[..., 0]
    causal = _causal(size, flat)
    if causal is not None and tensor.numel() == size * size:
        pairs = _two_valued(size + count, causal, tensor)
        return pairs.reshape([size + count if axis in axes else 1 for axis in range(tensor.ndim)])
    query, key = axes
    edge = tensor.narrow(query, 0 if left else size - 1, 1).repeat_interleave(count, query)
    tensor = torch.cat([edge, tensor] if left else [tensor, edge], query)
    column = torch.full_like(tensor.narrow(key, 0, count), hidden or 0)
    return torch.cat([column, tensor] if left else [tensor, column], key)


def _causal(size: int, pairs: Tensor) -> tuple[Any, Any] | None:
    """What a causal mask of two dimensions holds above its diagonal, and elsewhere; None if it is no such mask."""
    values = pairs[0, -1], pairs[-1, 0]
    return values if torch.equal(_two_valued(size, values, pairs), pairs) else None


def _two_valued(size: int, values: tuple[Tensor, Tensor], like: Tensor) -> Tensor:
    later = torch.ones(size, size, dtype=torch.bool, device=like.device).triu(1)
    return torch.where(later, values[0], values[1])


def narrowed(
    batch: Any, paddings: Sequence[Padding], count: int, *, left: bool, only_at_ends: bool = False
) -> Narrowed | None:
    """A shorter sample alone, as it is in the batch and without padding: neither of the longest nor of the shortest."""
    masks = [padding.mask for padding in paddings if _columns(padding.mask)[1]]
    if not masks or masks[0].shape[0] != count:
        return None
    along, columns = _columns(masks[0])
    real = torch.zeros(count, columns, dtype=torch.bool)
    for mask in masks:  # another tensor may have as many columns, and need more of them
        axis, size = _columns(mask)
        if (len(mask), size) == (count, columns):
            real |= mask.movedim(axis, 1).reshape(count, columns, -1).any(-1).to(real.device)
    needed = (real.flip(1) if left else real).mul(torch.arange(columns) + 1).amax(1)
    if only_at_ends and not bool((real.sum(1) == needed).all()):
        return None
    shorter = sorted((int(size), row) for row, size in enumerate(needed) if 0 < size < columns)
    if not shorter:
        return None
    few, row = shorter[len(shorter) // 2]
    rows = torch.tensor([row])
    start = columns - few if left else 0

    def cut(tensor: Tensor, axes: Sequence[int]) -> Tensor:
        for axis in axes:
            tensor = tensor.narrow(axis, start, few)
        return tensor.clone()

    wide, new = selected(batch, rows, count), dict[Key, Any]()
    chosen = masks[0][rows]
    mask_values, by_key = _mask_values(paddings), {padding.key: padding for padding in paddings}
    for key, field, axes in _with_columns(wide, chosen, by_key, mask_values):
        tensor = tensor_of(field).detach()
        gone = tensor.narrow(axes[0], 0 if left else few, columns - few)
        if (
            key not in mask_values
            and key not in by_key
            and len(axes) == 1
            and tensor.dtype != torch.bool
            and not bool((gone == gone.flatten()[0]).all())
        ):
            return None  # of which nothing is known, and which may be real there
        new[key] = applied(field, partial(cut, axes=axes))
    return Narrowed(wide, replaced(wide, new), columns - few, few, cut(chosen, [along]))


@dataclass(frozen=True)
class Narrowed:
    """A sample with the padding that others made, and without it."""

    wide: Any
    narrow: Any
    #: columns that were cut off, and those that are left
    cut: int
    columns: int
    #: of the narrow batch
    mask: Tensor


def _mask_values(paddings: Sequence[Padding]) -> dict[Key, float | None]:
    """The masks of the padding, and their values there."""
    return {key: value for padding in paddings for key, value in padding.mask_values.items()}


def _with_columns(
    batch: Any, mask: Tensor, paddings: Container[Key] | dict[Key, Padding], mask_values: Container[Key]
) -> Iterator[tuple[Key, Tensor | MaskedTensor, list[int]]]:
    """The tensors of a batch that have the rows and columns of a mask, and the axes along which they have columns."""
    along, columns = _columns(mask)
    images = mask.ndim - mask.shape[1:].count(1) > 2
    for key, field in fields(batch).items():
        tensor = tensor_of(field)
        if tensor.ndim < 2 or tensor.layout is not torch.strided:
            continue
        square = tensor.shape[-1] == tensor.shape[-2] == columns
        if square and _is_for_all_samples(tensor, columns) and key not in paddings and key not in mask_values:
            yield key, field, [tensor.ndim - 2, tensor.ndim - 1]
            continue
        if tensor.shape[0] != mask.shape[0]:
            continue
        if key in mask_values and not images:
            axes = [axis for axis in range(1, tensor.ndim) if tensor.shape[axis] == columns]
            axes = axes[-2:] if square else axes[-1:]
        else:
            first = along - max(mask.ndim - tensor.ndim, 0) if key in mask_values else along
            places = [first, 1, *([2] if tensor.ndim == 3 and tensor.is_floating_point() else [])]
            axes = [axis for axis in places if axis < tensor.ndim and tensor.shape[axis] == columns][:1]
            if square and tensor.ndim > 2 and tensor.dtype == torch.bool and key not in mask_values:
                axes = [tensor.ndim - 2, tensor.ndim - 1]
        if axes:
            yield key, field, axes


def _is_for_all_samples(tensor: Tensor, columns: int) -> bool:
    """Whether a tensor is an attention mask for all samples."""
    if tensor.numel() != columns**2:
        return False
    return tensor.dtype == torch.bool or _causal(columns, tensor.reshape(columns, columns)) is not None


def _column(
    tensor: Tensor,
    axis: int,
    key: Key,
    paddings: dict[Key, Padding],
    mask_values: dict[Key, float | None],
    common: Tensor,
) -> Tensor:
    """A column of padding: what the tensor has there already, else zeros, or for a mask what means padding.

    A tensor of which nothing is known has what it has where others, of which ``common`` is the mask, are padded.
    """
    edge = tensor.narrow(axis, tensor.shape[axis] - 1, 1)
    if key in mask_values:
        return torch.full_like(edge, mask_values[key] or 0)
    if tensor.dtype == torch.bool:
        return torch.zeros_like(edge)
    if key in paddings:
        content = _content(tensor, paddings[key].mask)
        return torch.zeros_like(edge) if content is None else content.expand_as(edge).clone()
    content = _content(tensor, common) if axis == 1 else None
    return edge.clone() if content is None else content.expand_as(edge).clone()


def _content(tensor: Tensor, mask: Tensor) -> Tensor | None:
    """What stands at the first padded position of a tensor."""
    if mask.ndim < 2 or mask.shape[:2] != tensor.shape[:2]:
        return None
    places = (~mask.reshape(*mask.shape[:2], -1).any(-1)).nonzero()
    return tensor[tuple(places[0])] if len(places) else None


def emptied(batch: Any, paddings: Sequence[Padding], row: int) -> Any | None:
    """The batch with one row that is all padding; None if nothing in the batch can mark it."""
    new: dict[Key, Any] = {}
    inside = fields(batch)
    is_marked = False
    for padding in paddings:
        field = inside[padding.key]
        tensor = tensor_of(field).detach().clone()
        if padding.mask.ndim == 0 or tensor.shape[0] != padding.mask.shape[0]:
            continue
        padded = tensor[~padding.entries(tensor)]
        tensor[row] = padded[0] if padded.numel() else 0
        if isinstance(field, MaskedTensor):
            mask = field.mask.clone()
            mask[row] = False
            new[padding.key], is_marked = masked(tensor, mask), True
            continue
        new[padding.key] = tensor.requires_grad_(field.requires_grad)
        for name, value in padding.mask_values.items():
            mask = tensor_of(inside[name]).clone()
            mask[row] = value or 0
            new[name], is_marked = mask, True
        is_marked |= padding.is_marked
    return replaced(batch, new) if is_marked else None
