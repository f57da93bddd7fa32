"""Applies one update rule to the entries that a gradient specifies, and to no other.

Dense gradients update the parameter in place. Masked gradients update copies, of which the specified entries
are taken over. Row gradients go to the fused kernel where there is one that fits, else gather, update, write
back: the cost follows the rows. Halves are computed in float32 and rounded once; complex numbers as pairs of
real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from maskgrad import kernels
from maskgrad.optim.gradients import Dense, Gradient, Masked, Rows
from maskgrad.sparse import increasing, places, prod

__all__ = ["Update", "apply_update"]

_PIECE = 1 << 17  # entries of a masked update at a time


@dataclass(frozen=True, slots=True)
class Update:
    """One update, its numbers already bound.

    ``rule(param, grad, *states)`` works in place on tensors of one shape;
    ``fused(param, indices, values, *states)`` on the rows of contiguous tables, merging duplicates, or is
    None.
    """

    rule: Callable[..., None]
    fused: Callable[..., None] | None = None


def apply_update(update: Update, param: Tensor, gradient: Gradient, states: Sequence[Tensor]) -> None:
    """Update ``param`` and ``states`` (each of the parameter's shape) where ``gradient`` specifies an entry."""
    tensors = [param.detach(), *states]
    if isinstance(gradient, Rows):
        _update_rows(update, tensors, gradient)
        return
    values = gradient.values
    if param.is_complex():
        tensors, values = [_real(t) for t in tensors], _pairs(values, param)
    if isinstance(gradient, Dense):
        _update_dense(update, tensors, values)
    else:
        mask = gradient.mask.unsqueeze(-1).expand_as(values) if param.is_complex() else gradient.mask
        _update_masked(update, tensors, Masked(values, mask))


def _update_dense(update: Update, tensors: list[Tensor], values: Tensor) -> None:
    dtype = _compute_dtype(tensors[0])
    wide = tensors if tensors[0].dtype is dtype else [_widen(t, dtype) for t in tensors]
    update.rule(wide[0], values if values.dtype is dtype else values.to(dtype), *wide[1:])
    if wide is not tensors:
        for narrow, computed in zip(tensors, wide, strict=True):
            narrow.copy_(computed)


def _update_masked(update: Update, tensors: list[Tensor], gradient: Masked) -> None:
    values, mask = gradient.values, gradient.mask
    if tensors[0].device.type == "cpu" and all(t.is_contiguous() for t in (*tensors, values, mask)):
        # Some ten temporary tensors are needed, and on the CPU they had better stay in the cache.
        flat = [t.view(-1).split(_PIECE) for t in (mask, values, *tensors)]
    else:
        flat = [(t,) for t in (mask, values, *tensors)]
    for piece_mask, piece_values, *piece in zip(*flat, strict=True):
        _update_masked_piece(update, piece, piece_values, piece_mask)


def _update_masked_piece(update: Update, tensors: list[Tensor], values: Tensor, mask: Tensor) -> None:
    dtype = _compute_dtype(tensors[0])
    copies = [t.clone() if _widen(t, dtype) is t else _widen(t, dtype) for t in tensors]
    update.rule(copies[0], values.to(dtype), *copies[1:])
    for old, computed in zip(tensors, copies, strict=True):
        torch.where(mask, computed.to(old.dtype), old, out=old)


def _update_rows(update: Update, tensors: list[Tensor], gradient: Rows) -> None:
    if len(gradient.indices) == 0:
        return
    param = tensors[0]
    sizes = param.shape[: gradient.leading]
    shape = (prod(sizes), *param.shape[gradient.leading :])
    if param.is_complex():
        tensors, values, shape = [_real(t) for t in tensors], _pairs(gradient.values, param), (*shape, 2)
    else:
        values = gradient.values.to(_compute_dtype(param))
    # A table can be seen as (R, *row) without a copy unless its memory order is unusual (a transposed
    # weight).
    as_rows = all(t.is_contiguous() for t in tensors)
    tables = [t.view(shape) for t in tensors] if as_rows else tensors
    if update.fused is not None and as_rows:
        update.fused(tables[0], gradient.indices, values, *tables[1:])
        return
    indices = gradient.indices
    if not increasing(indices):
        indices, values = kernels.merge_rows(indices, values, shape[0], "sum")
    at = (indices,) if as_rows else tuple(places(indices, sizes))
    dtype = _compute_dtype(param)
    rows = [_widen(t[at], dtype) for t in tables]
    update.rule(rows[0], values, *rows[1:])
    for table, computed in zip(tables, rows, strict=True):
        table[at] = computed.to(table.dtype)


def _compute_dtype(param: Tensor) -> torch.dtype:
    """Halves are updated in float32; a complex parameter in the dtype of its parts."""
    if param.is_complex():
        return param.dtype.to_real()
    return torch.float32 if param.dtype in (torch.float16, torch.bfloat16) else param.dtype


def _widen(t: Tensor, dtype: torch.dtype) -> Tensor:
    """``t`` for the computation; a Boolean marker stays Boolean."""
    return t if t.dtype is torch.bool else t.to(dtype)


def _pairs(values: Tensor, param: Tensor) -> Tensor:
    """Values of a complex parameter's gradient, real or complex, as pairs."""
    return torch.view_as_real(values.to(param.dtype).resolve_conj())


def _real(t: Tensor) -> Tensor:
    """A view of complex numbers as pairs; a Boolean marker of a complex parameter is made in pairs."""
    return torch.view_as_real(t) if t.is_complex() else t
