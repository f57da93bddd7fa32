"""Applies one update rule to the entries that a gradient specifies, and to no other.

Dense gradients update the parameter in place. Masked gradients update copies, of which the specified entries
are taken over. Row gradients go to the fused kernel where there is one that fits, else gather, update, write
back: the cost follows the rows. Halves are computed in float32 and rounded once; complex numbers as pairs of
real ones. A state may have one value per row: shape (R, 1, ..., 1) next to a parameter (R, ...).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from maskgrad import kernels
from maskgrad.gradients.gradient import Gradient, widened_dtype
from maskgrad.optim.lazy.access import computing_dtype
from maskgrad.optim.rule import Update
from maskgrad.optim.specified import EVERY, InSlots, Listed, Specified, UnderMask
from maskgrad.sparse import increasing, places, prod

__all__ = ["apply_update", "row_tables"]

_PIECE = 1 << 17  # entries of a masked update at a time


def apply_update(update: Update, param: Tensor, gradient: Gradient, states: Sequence[Tensor]) -> None:
    """Update ``param`` and ``states`` where ``gradient`` specifies an entry.

    Each state has the parameter's shape, or one value for each row.
    """
    tensors = [param.detach(), *states]
    values, mask = gradient.values, gradient.mask
    if gradient.in_slots:
        if param.numel() and len(values):
            _update_slots(update, tensors, gradient)
        return
    if gradient.rows is not None:
        if len(values) == 0:
            return
        if gradient.leading > 0:
            _update_rows(update, tensors, gradient)
            return
        values = values.to(widened_dtype(param.dtype)).sum(0)
    if param.is_complex():
        tensors, values = [_real(t) for t in tensors], _pairs(values, param)
    if mask is None:
        _update_dense(update, tensors, values)
    else:
        mask = mask.unsqueeze(-1).expand_as(values) if param.is_complex() else mask
        _update_masked(update, tensors, values, mask)


def _run(update: Update, tensors: Sequence[Tensor], values: Tensor, specified: Specified) -> None:
    """The rule; one that looks at single entries only does not ask which are specified."""
    if update.whole or specified.in_pieces or _some_per_row(tensors):
        update.rule(tensors[0], values, *tensors[1:], specified=specified)
    else:
        update.rule(tensors[0], values, *tensors[1:])


def _some_per_row(tensors: Sequence[Tensor]) -> bool:
    return any(t.shape != tensors[0].shape for t in tensors)


def _update_dense(update: Update, tensors: list[Tensor], values: Tensor) -> None:
    dtype = computing_dtype(tensors[0])
    wide = tensors if tensors[0].dtype is dtype else [_widen(t, dtype) for t in tensors]
    _run(update, wide, values if values.dtype is dtype else values.to(dtype), EVERY)
    if wide is not tensors:
        for narrow, computed in zip(tensors, wide, strict=True):
            narrow.copy_(computed)


def _update_masked(update: Update, tensors: list[Tensor], values: Tensor, mask: Tensor) -> None:
    parts = (mask, values, *tensors)
    pieces: list[Sequence[Tensor]] = [(t,) for t in parts]
    # Some ten temporary tensors are needed, and on the CPU they had better stay in the cache.
    if tensors[0].device.type == "cpu" and not update.whole and mask.numel() > _PIECE:
        if _some_per_row(tensors):
            rows = max(_PIECE * len(mask) // mask.numel(), 1)
            pieces = [t.split(rows) for t in parts]
        elif all(t.is_contiguous() for t in parts):
            pieces = [t.view(-1).split(_PIECE) for t in parts]
    for mask, values, *piece in zip(*pieces, strict=True):
        _update_masked_piece(update, piece, values, mask)


def _update_masked_piece(update: Update, tensors: list[Tensor], values: Tensor, mask: Tensor) -> None:
    dtype = computing_dtype(tensors[0])
    copies = [t.clone() if _widen(t, dtype) is t else _widen(t, dtype) for t in tensors]
    _run(update, copies, values.to(dtype), UnderMask(mask))
    for old, computed in zip(tensors, copies, strict=True):
        torch.where(_touched(mask, old), computed.to(old.dtype), old, out=old)


def _touched(mask: Tensor, state: Tensor) -> Tensor:
    """``mask`` for a state: a row is touched if one of its entries is."""
    if mask.shape == state.shape:
        return mask
    summed = [
        d for d, (wide, narrow) in enumerate(zip(mask.shape, state.shape, strict=True)) if wide != narrow
    ]
    return mask.any(summed, keepdim=True)


def row_tables(
    update: Update, tensors: Sequence[Tensor], gradient: Gradient
) -> tuple[list[Tensor], Tensor] | None:
    """What the kernel of ``update`` takes: parameter and states seen as (R, *row), and the values; None: none fits."""
    if update.fused is None or gradient.mask is not None or gradient.leading == 0:
        return None
    # Kernels know no gaps, no markers, and one value per row only for whole rows of real numbers.
    if not all(t.is_contiguous() and t.dtype is not torch.bool for t in tensors):
        return None
    if _some_per_row(tensors) and (gradient.leading > 1 or tensors[0].is_complex()):
        return None
    tensors, values = _real_numbers(tensors, gradient)
    return _as_rows(tensors, gradient.leading), values


def _real_numbers(tensors: Sequence[Tensor], gradient: Gradient) -> tuple[list[Tensor], Tensor]:
    """Parameter and states, complex ones as pairs, and the gradient's values in the dtype of the computation."""
    if tensors[0].is_complex():
        return [_real(t) for t in tensors], _pairs(gradient.values, tensors[0])
    return [*tensors], gradient.values.to(computing_dtype(tensors[0]))


def _as_rows(tensors: Sequence[Tensor], leading: int) -> list[Tensor]:
    """Contiguous tensors seen as (R, *row)."""
    whole = tensors[0].shape
    inner = prod(whole[1:leading])
    return [t.view(len(t) * (inner if t.shape == whole else 1), *t.shape[leading:]) for t in tensors]


def _update_rows(update: Update, tensors: list[Tensor], gradient: Gradient) -> None:
    assert gradient.rows is not None
    read = row_tables(update, tensors, gradient)
    if read is not None and update.fused is not None:
        (table, *states), values = read
        arranged: list[list[Tensor | None]] = [[table], *([state] for state in update.fused.arranged(states))]
        kernels.update_tables_(
            update.fused.kernel, arranged, [gradient.rows], [values], **update.fused.numbers
        )
        return
    param, leading = tensors[0], gradient.leading
    sizes, inner = param.shape[:leading], prod(param.shape[1:leading])
    dtype = computing_dtype(param)
    tables, values = _real_numbers(tensors, gradient)
    per_row = [t.shape != tables[0].shape for t in tables]
    # A table can be seen as (R, *row) without a copy unless its memory order is unusual (a transposed
    # weight).
    as_rows = all(t.is_contiguous() for t in tables)
    if as_rows:
        tables = _as_rows(tables, leading)
    else:
        tables = [
            t.view(len(t), *t.shape[leading:]) if one else t for t, one in zip(tables, per_row, strict=True)
        ]
    indices = gradient.rows
    if not increasing(indices):
        indices, values = kernels.merge_rows(indices, values, prod(sizes), "sum")
    at = (indices,) if as_rows else tuple(places(indices, sizes))
    first = (indices if leading == 1 else indices.div(inner, rounding_mode="floor"),)
    ats = [first if r else at for r in per_row]
    rows = [_widen(t[i], dtype) for t, i in zip(tables, ats, strict=True)]
    if gradient.mask is not None:
        mask = gradient.mask[indices]
        mask = mask.unsqueeze(-1).expand_as(values) if param.is_complex() else mask
        _run(update, rows, values, UnderMask(mask))
        rows = [
            torch.where(_touched(mask, computed), computed.to(t.dtype), t[i])
            for t, i, computed in zip(tables, ats, rows, strict=True)
        ]
    else:
        _run(update, rows, values, Listed(first[0]) if any(per_row) and leading > 1 else EVERY)
    for table, i, computed in zip(tables, ats, rows, strict=True):
        table[i] = computed.to(table.dtype)


def _update_slots(update: Update, tensors: list[Tensor], gradient: Gradient) -> None:
    """Rows in slots; every size follows from sizes.

    An unused slot does again what the first one does, and writes the same row again with the same numbers. Where all
    are unused, they write what was there.
    """
    assert gradient.rows is not None
    tables, values = _real_numbers(tensors, gradient)
    dtype, last = computing_dtype(tensors[0]), len(tensors[0]) - 1
    used = gradient.rows <= last
    rows = torch.where(used, gradient.rows, gradient.rows[:1]).clamp(max=last)
    wide = used.view(-1, *(1 for _ in values.shape[1:]))
    values = torch.where(wide, values, values[:1])
    trained = None
    if gradient.mask is not None:
        trained = gradient.mask.index_select(0, rows)
        trained = trained.unsqueeze(-1).expand_as(values) if tensors[0].is_complex() else trained
        values = torch.where(trained, values, 0)
    before = [t.index_select(0, rows) for t in tables]
    after = [_widen(t, dtype).clone() for t in before]
    _run(update, after, values, InSlots(wide, EVERY if trained is None else UnderMask(trained)))
    for table, old, new in zip(tables, before, after, strict=True):
        written = used[0] if trained is None else used[0] & _touched(trained, old)
        table.index_copy_(0, rows, torch.where(written, new.to(table.dtype), old))


def _widen(t: Tensor, dtype: torch.dtype) -> Tensor:
    """``t`` for the computation; a Boolean marker stays Boolean."""
    return t if t.dtype is torch.bool else t.to(dtype)


def _pairs(values: Tensor, param: Tensor) -> Tensor:
    """Values of a complex parameter's gradient, real or complex, as pairs."""
    # Detached, for torch cannot view a view of what a CSR tensor stores.
    return torch.view_as_real(values.to(param.dtype).resolve_conj().detach())


def _real(t: Tensor) -> Tensor:
    """A view of complex numbers as pairs; a Boolean marker of a complex parameter is made in pairs."""
    return torch.view_as_real(t) if t.is_complex() else t
