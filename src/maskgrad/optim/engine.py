"""Apply an update rule to the specified entries of a gradient only.

Dense gradients update the parameter in place. Masked gradients update copies; their specified entries are
written back. Row gradients use a fused kernel if one fits, else gather, update, write
back: the cost depends on the number of rows. Half precision is computed in float32 and rounded once; complex numbers
as pairs of real ones. A state may have one value per row: shape (R, 1, ..., 1) next to a parameter (R, ...).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from maskgrad import kernels
from maskgrad.gradients.gradient import Gradient, widened_dtype
from maskgrad.kernels.updates.specified import EVERY, Listed, Specified
from maskgrad.optim.rule import Update
from maskgrad.semantics.entries import HALVES
from maskgrad.sparse import increasing, places

__all__ = ["RowAccess", "apply_update", "computing_dtype"]

_PIECE = 1 << 17  # entries of a masked update at a time


def computing_dtype(param: Tensor) -> torch.dtype:
    """Return the dtype of updates: float32 for half precision, the real dtype for complex numbers."""
    if param.is_complex():
        return param.dtype.to_real()
    return torch.float32 if param.dtype in HALVES else param.dtype


class RowAccess:
    """Reads and writes rows of a parameter and its states, in the dtype in which updates are computed.

    The parameter is viewed as (R, *row), R being the product of its first ``leading`` sizes. The others have its shape,
    or one value for each row of the first dimension. These are views; if its strides
    do not allow one (a transposed weight), rows are indexed by their coordinates.
    """

    def __init__(self, tensors: Sequence[Tensor], leading: int) -> None:
        param = tensors[0]
        self.leading, self.sizes = leading, param.shape[:leading]
        self.number, self.row_size = prod(self.sizes), prod(param.shape[leading:])
        self._dtype = computing_dtype(param)
        self._flat = leading == 1 or all(t.is_contiguous() for t in tensors)
        self._tables: list[tuple[Tensor, bool]] = []  # and whether it has one value for each row
        for t in map(_real, tensors):
            per_row = t.shape[: param.dim()] != param.shape
            height = len(t) if per_row else self.number
            self._tables.append((t.view(height, *t.shape[leading:]) if self._flat or per_row else t, per_row))
        self.some_per_row = any(per_row for _, per_row in self._tables)

    def first(self, rows: Tensor) -> Tensor:
        """Return the row of the first dimension to which each of ``rows`` belongs."""
        return rows if self.leading == 1 else rows.div(prod(self.sizes[1:]), rounding_mode="floor")

    def gather(self, rows: Tensor) -> list[Tensor]:
        """Copies of the rows (n,), each (n, *row); a Boolean marker stays Boolean."""
        found = [
            table.index_select(0, at[0]) if len(at) == 1 else table[at] for table, at in self._indexed(rows)
        ]
        return [t if t.dtype is torch.bool else t.to(self._dtype) for t in found]

    def scatter(self, rows: Tensor, values: Sequence[Tensor]) -> None:
        """Write rows back, rounded once."""
        for (table, at), value in zip(self._indexed(rows), values, strict=True):
            if len(at) == 1:
                table.index_copy_(0, at[0], value.to(table.dtype))
            else:
                table[at] = value.to(table.dtype)

    def pieces(self, rows: Tensor, entries: int) -> Sequence[Tensor]:
        """Split ``rows`` into pieces of about ``entries`` entries."""
        pieces: Sequence[Tensor] = rows.split(max(entries // max(self.row_size, 1), 1))
        return pieces

    def _indexed(self, rows: Tensor) -> list[tuple[Tensor, tuple[Tensor, ...]]]:
        at = (rows,) if self._flat else tuple(places(rows, self.sizes))
        return [(table, (self.first(rows),) if per_row else at) for table, per_row in self._tables]


def apply_update(update: Update, param: Tensor, gradient: Gradient, states: Sequence[Tensor]) -> None:
    """Update ``param`` and ``states`` where ``gradient`` specifies an entry.

    Each state has the parameter's shape, or one value for each row.
    """
    tensors = [param.detach(), *states]
    values, mask = gradient.values, gradient.mask
    if gradient.rows is not None:
        if len(values) == 0:
            return
        if gradient.leading > 0:
            _update_rows(update, tensors, gradient)
            return
        values = values.to(widened_dtype(param.dtype)).sum(0)
    if param.is_complex():
        values, tensors = _real_values(values, param), [_real(t) for t in tensors]
        mask = None if mask is None else _of_pairs(mask, param)
    if mask is None:
        _update_dense(update, tensors, values)
    else:
        _update_masked(update, tensors, values, mask)


def _run(update: Update, tensors: Sequence[Tensor], values: Tensor, specified: Specified) -> None:
    """Call the rule; elementwise rules do not get the specified entries."""
    if specified.in_pieces or _some_per_row(tensors):
        update.rule(tensors[0], values, *tensors[1:], specified=specified)
    else:
        update.rule(tensors[0], values, *tensors[1:])


def _some_per_row(tensors: Sequence[Tensor]) -> bool:
    return any(t.shape != tensors[0].shape for t in tensors)


def _update_dense(update: Update, tensors: list[Tensor], values: Tensor) -> None:
    dtype = computing_dtype(tensors[0])
    wide = [_widen(t, dtype) for t in tensors]
    _run(update, wide, values.to(dtype), EVERY)
    for narrow, computed in zip(tensors, wide, strict=True):
        if narrow is not computed:
            narrow.copy_(computed)


def _update_masked(update: Update, tensors: list[Tensor], values: Tensor, mask: Tensor) -> None:
    parts = (mask, values, *tensors)
    pieces: list[Sequence[Tensor]] = [(t,) for t in parts]
    # Some ten temporary tensors are needed, which should stay in the cache on the CPU.
    if tensors[0].device.type == "cpu" and mask.numel() > _PIECE:
        if _some_per_row(tensors):
            rows = max(_PIECE * len(mask) // mask.numel(), 1)
            pieces = [t.split(rows) for t in parts]
        elif all(t.is_contiguous() for t in parts):
            pieces = [t.view(-1).split(_PIECE) for t in parts]
    dtype = computing_dtype(tensors[0])
    for mask, values, *piece in zip(*pieces, strict=True):
        copies = [t.clone() if _widen(t, dtype) is t else _widen(t, dtype) for t in piece]
        _run(update, copies, values.to(dtype), Specified(mask))
        for old, computed in zip(piece, copies, strict=True):
            torch.where(_touched(mask, old), computed.to(old.dtype), old, out=old)


def _touched(mask: Tensor, state: Tensor) -> Tensor:
    """Reduce ``mask`` to the shape of a state: a row is touched if one of its entries is."""
    if mask.shape == state.shape:
        return mask
    summed = [
        d for d, (wide, narrow) in enumerate(zip(mask.shape, state.shape, strict=True)) if wide != narrow
    ]
    return mask.any(summed, keepdim=True)


def _update_rows(update: Update, tensors: list[Tensor], gradient: Gradient) -> None:
    assert gradient.rows is not None
    fused, leading = update.fused, gradient.leading
    rows, values = gradient.rows, _real_values(gradient.values, tensors[0])
    # Kernels support no gaps, no markers, and one value per row only for whole rows of real numbers.
    if (
        fused is not None
        and gradient.mask is None
        and all(t.is_contiguous() and t.dtype is not torch.bool for t in tensors)
        and not (_some_per_row(tensors) and (leading > 1 or tensors[0].is_complex()))
    ):
        tables = [t.view(prod(t.shape[:leading]), *t.shape[leading:]) for t in map(_real, tensors)]
        arranged = [tables[0], *fused.arranged(tables[1:])]
        if kernels.update_rows_(fused.kernel, arranged, rows, values, **fused.numbers):
            return
    access = RowAccess(tensors, leading)
    if not increasing(rows):
        rows, values = kernels.merge_rows(rows, values, access.number, "sum")
    updated = access.gather(rows)
    if gradient.mask is None:
        pieces = leading > 1 and access.some_per_row
        _run(update, updated, values, Listed(access.first(rows)) if pieces else EVERY)
    else:
        mask = _of_pairs(gradient.mask[rows], tensors[0])
        _run(update, updated, values, Specified(mask))
        old = access.gather(rows)
        updated = [torch.where(_touched(mask, new), new, t) for new, t in zip(updated, old, strict=True)]
    access.scatter(rows, updated)


def _widen(t: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast ``t`` for the computation; a Boolean marker stays Boolean."""
    return t if t.dtype is torch.bool else t.to(dtype)


def _real(t: Tensor) -> Tensor:
    """A view of complex numbers as pairs; a Boolean marker of a complex parameter is made in pairs."""
    return torch.view_as_real(t) if t.is_complex() else t


def _real_values(values: Tensor, param: Tensor) -> Tensor:
    """Values of a gradient in the dtype of the computation; of a complex parameter, real or complex, as pairs."""
    if param.is_complex():
        # Detached, for torch cannot view a view of what a CSR tensor stores.
        return torch.view_as_real(values.to(param.dtype).resolve_conj().detach())
    return values.to(computing_dtype(param))


def _of_pairs(mask: Tensor, param: Tensor) -> Tensor:
    """Expand ``mask`` to the pairs of a complex parameter."""
    return mask.unsqueeze(-1).expand(*mask.shape, 2) if param.is_complex() else mask
