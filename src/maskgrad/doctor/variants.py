"""The same batch with other contents in its padding, more columns of it or none, or other rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from maskgrad.doctor.batches import LEAVES, Key, applied, fields, ragged, rebuilt, replaced, tensor_of
from maskgrad.doctor.padding import Padding, by_diagonal, is_causal
from maskgrad.masked_tensor import MaskedTensor

__all__ = [
    "KINDS", "Narrowed", "by_columns", "narrowed", "other_contents", "pads_left", "rows_of", "selected", "widened",
]  # fmt: skip

#: what is written over padding, and how a report calls it
KINDS = {
    "numbers": "different values and ids", "nan": "NaN", "inf": "infinity",
    "large": "values ten thousand times as large and different ids",
}  # fmt: skip
_LARGE = 1e4


def other_contents(tensor: Tensor, real: Tensor, kind: str, seed: int = 0) -> Tensor | None:
    """A copy of ``tensor`` with other values where ``real`` is False; None if it can have no others of that kind."""
    generator = torch.Generator().manual_seed(0x5EED + seed)
    numbers = tensor.is_floating_point() or tensor.is_complex()
    if bool(real.all()) or (kind in ("nan", "inf") and not numbers):
        return None
    if tensor.dtype == torch.bool:
        return torch.where(real, tensor, ~tensor)
    if not numbers:
        return torch.where(real, tensor, _ids(tensor, real, generator))
    if kind in ("nan", "inf"):
        return torch.where(real, tensor, torch.full_like(tensor, float(kind)))
    size = float(torch.where(real & tensor.isfinite(), tensor, 0).abs().max()) or 1.0
    drawn = torch.randn(tensor.shape, generator=generator, dtype=torch.float64).mul_(size)
    if kind == "large":
        limit = torch.finfo(tensor.dtype).max / 16
        drawn.mul_(_LARGE).clamp_(-limit, limit)
    return torch.where(real, tensor, drawn.to(tensor))


def _ids(tensor: Tensor, real: Tensor, generator: torch.Generator) -> Tensor:
    """Ids that the batch has elsewhere, so that every table has them, and never the present one."""
    known = tensor[real].unique()
    if len(known) < 2:  # whatever lies between 0 and the largest number seen is in the table too
        known = torch.arange(max(2, *(known + 1).tolist()), device=tensor.device, dtype=tensor.dtype)
    drawn = torch.randint(len(known), tensor.shape, generator=generator).to(tensor.device)
    return torch.where(known[drawn] == tensor, known[(drawn + 1) % len(known)], known[drawn])


def rows_of(batch: Any, paddings: Sequence[Padding]) -> int:
    """The number of samples: the first dimension of the masks, else of most tensors; 0 if there is none."""
    masks = [padding.mask for padding in paddings]
    groups: Iterable[Iterable[Any]] = (masks, fields(batch).values(), ragged(batch).values())
    counts = ([size for held in group if (size := _count(held)) >= 0] for group in groups)
    sizes = next((sizes for sizes in counts if sizes), [0])
    return max(set(sizes), key=sizes.count)


def _count(held: Any) -> int:
    if isinstance(held, PackedSequence):
        return int(held.batch_sizes[0])
    return int(held.size(0)) if held.ndim else -1


def selected(batch: Any, rows: Tensor, count: int) -> Any:
    """The batch with the given rows, in their order, of all tensors with ``count`` of them, and of lists of samples."""

    def chosen(_: Key, part: Any) -> Any:
        if isinstance(part, LEAVES):
            return _chosen(part, rows) if _count(part) == count else part
        if part is batch or type(part) not in (list, tuple) or len(part) != count:
            return part
        tensors = any(isinstance(held, Tensor) and held.shape[:1] == (count,) for held in part)
        return part if tensors else type(part)(part[row] for row in rows.tolist())

    return rebuilt(batch, chosen)


def _chosen(held: Any, rows: Tensor) -> Any:
    """Rows of samples, which may lie one after the other."""
    if isinstance(held, PackedSequence):
        padded, lengths = pad_packed_sequence(held)
        return pack_padded_sequence(padded[:, rows], lengths[rows], enforce_sorted=False)
    if isinstance(held, MaskedTensor) and held.layout is torch.jagged:
        return held[rows]
    if not tensor_of(held).is_nested:
        return applied(held, itemgetter(rows.to(tensor_of(held).device)))
    samples = held.unbind()
    return torch.nested.nested_tensor([samples[row].detach() for row in rows.tolist()], layout=held.layout)


def pads_left(paddings: Sequence[Padding]) -> bool:
    """Whether padding is at the beginning of the sequences that the first is of, and nowhere at their end."""
    # labels that are ignored at the beginning are those of a prompt, which is read
    read = [each.mask for each in paddings if each.mask.ndim == 2 and not each.source.startswith("labels")]
    masks = [mask for mask in read if mask.numel() and _columns(mask)[1] == _columns(paddings[0].mask)[1]]
    ends = all(bool(mask[:, -1].all()) for mask in masks)
    return bool(masks) and ends and not all(bool(mask[:, 0].all()) for mask in masks)


def by_columns(paddings: Sequence[Padding]) -> list[list[Padding]]:
    """The paddings, once for each number of columns, those that have it first: an encoder's and a decoder's differ."""
    sizes = dict.fromkeys(_columns(padding.mask)[1] for padding in paddings)
    return [sorted(paddings, key=lambda each: _columns(each.mask)[1] != size) for size in sizes if size]


def _columns(mask: Tensor) -> tuple[int, int]:
    """The axis of the positions, and how many there are; a mask for all channels, (B, 1, T), has them later."""
    return next(((axis, size) for axis, size in enumerate(mask.shape) if axis and size > 1), (0, 0))


class _Columns(NamedTuple):
    """A tensor with the rows of a mask, the axes of the columns, its own mask, its value there if it is a mask."""

    key: Key
    field: Tensor | MaskedTensor
    axes: list[int]
    mask: Tensor | None
    hidden: float | None


def _with_columns(batch: Any, mask: Tensor, paddings: Sequence[Padding]) -> Iterator[_Columns]:
    """The tensors of a batch that have the rows and columns of a mask."""
    along, columns = _columns(mask)
    images = mask.ndim - mask.shape[1:].count(1) > 2
    masks = {padding.key: padding.mask for padding in paddings}
    values = {key: value or 0.0 for padding in paddings for key, value in padding.mask_values.items()}
    for key, field in fields(batch).items():
        tensor = tensor_of(field)
        shape, axes = tuple(tensor.shape) if tensor.layout is torch.strided else (), range(1, tensor.ndim)
        having = [axis for axis in axes if shape[axis:] and shape[axis] == columns]
        square, pairs = shape[-2:] == (columns, columns), [tensor.ndim - 2, tensor.ndim - 1]
        for_all = square and tensor.numel() == columns**2 and key not in masks and key not in values
        if for_all and (tensor.dtype == torch.bool or is_causal(tensor)):
            having = pairs  # an attention mask for all samples
        elif shape[:1] != tuple(mask.shape[:1]):
            having = []
        elif key in values and not images:
            having = having[-2 if square else -1 :]
        elif square and tensor.ndim > 2 and tensor.dtype == torch.bool and key not in values:
            having = pairs
        else:
            first = along - max(mask.ndim - tensor.ndim, 0)
            places = [first, 1, *([2] if tensor.ndim == 3 and tensor.is_floating_point() else [])]
            if (own := masks.get(key)) is not None and own.ndim > 1:  # channels may be as many
                places = [_columns(own)[0]]
            having = [axis for axis in places if axis in having][:1]
        if having:
            yield _Columns(key, field, having, masks.get(key), values.get(key))


def widened(batch: Any, paddings: Sequence[Padding], *, left: bool, count: int = 1) -> tuple[Any, Any] | None:
    """The batch with more columns of the first padding that has some, and rows and columns before; None without."""
    common = next((padding.mask for padding in paddings if _columns(padding.mask)[1]), None)
    if common is None:
        return None

    def wider(tensor: Tensor, held: _Columns) -> Tensor:
        def beside(tensor: Tensor, column: Tensor, axis: int) -> Tensor:
            column = column.repeat_interleave(count, axis)
            return torch.cat([column, tensor] if left else [tensor, column], axis)

        axis, last = held.axes[0], held.axes[-1]
        size = tensor.shape[axis]
        if axis == last:
            return beside(tensor, _column(tensor, axis, held, common), axis)
        # a mask for pairs of positions: causal as before, else the new ones are hidden
        if tensor.numel() == size * size and is_causal(tensor):
            pairs = by_diagonal(tensor.reshape(size, size), size + count)
            return pairs.reshape([size + count if each in held.axes else 1 for each in range(tensor.ndim)])
        tensor = beside(tensor, tensor.narrow(axis, 0 if left else size - 1, 1), axis)
        return beside(tensor, torch.full_like(tensor.narrow(last, 0, 1), held.hidden or 0), last)

    found = _with_columns(batch, common, paddings)
    new = {held.key: applied(held.field, partial(wider, held=held)) for held in found}
    return replaced(batch, new), (common.shape[0], _columns(common)[1])


def _column(tensor: Tensor, axis: int, held: _Columns, common: Tensor) -> Tensor:
    """A column of padding: what the tensor has where it, or where nothing is known others, are padded, else zeros."""
    edge = tensor.narrow(axis, tensor.shape[axis] - 1, 1)
    if held.hidden is not None:
        return torch.full_like(edge, held.hidden)
    mask = common if held.mask is None and axis == 1 else held.mask
    if mask is not None and tensor.dtype != torch.bool and mask.shape[:2] == tensor.shape[:2]:
        places = (~mask.unsqueeze(-1).flatten(2).any(-1)).nonzero()
        if len(places):
            return tensor[tuple(places[0])].expand_as(edge).clone()
    return edge.clone() if held.mask is None and tensor.dtype != torch.bool else torch.zeros_like(edge)


class Narrowed(NamedTuple):
    """A sample with others' padding and without; how many columns were cut, and are left; the mask of these."""

    wide: Any
    narrow: Any
    cut: int
    columns: int
    mask: Tensor


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
    shorter = sorted((int(size), row) for row, size in enumerate(needed) if 0 < size < columns)
    if not shorter or (only_at_ends and not bool((real.sum(1) == needed).all())):
        return None
    few, row = shorter[len(shorter) // 2]
    start = columns - few if left else 0

    def cut(tensor: Tensor, axes: Sequence[int]) -> Tensor:
        for axis in axes:
            tensor = tensor.narrow(axis, start, few)
        return tensor.clone()

    rows = torch.tensor([row])
    wide, new = selected(batch, rows, count), dict[Key, Any]()
    for held in _with_columns(wide, masks[0][rows], paddings):
        gone = tensor_of(held.field).detach().narrow(held.axes[0], 0 if left else few, columns - few)
        numbers = len(held.axes) == 1 and gone.dtype != torch.bool
        unknown = numbers and held.hidden is None and held.mask is None
        if unknown and not bool((gone == gone.flatten()[0]).all()):
            return None  # it may be real there
        new[held.key] = applied(held.field, partial(cut, axes=held.axes))
    return Narrowed(wide, replaced(wide, new), columns - few, few, cut(masks[0][rows], [along]))
