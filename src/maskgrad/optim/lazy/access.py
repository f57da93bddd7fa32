"""Reading and writing rows of a parameter and its states, in the dtype in which updates are computed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from maskgrad.sparse import places, prod

__all__ = ["RowAccess", "computing_dtype", "finer_rows"]


def computing_dtype(param: Tensor) -> torch.dtype:
    """Halves are updated in float32, complex numbers as pairs of real ones."""
    if param.is_complex():
        return param.dtype.to_real()
    return torch.float32 if param.dtype in (torch.float16, torch.bfloat16) else param.dtype


class RowAccess:
    """Tensors seen as (R, *row), R being the product of the first ``leading`` sizes of the first of them.

    The others have its shape, or (with ``leading`` 1) one value per row. Nothing is copied to look at them so;
    where the order in memory does not allow it (a transposed weight), rows are found by their coordinates.
    """

    def __init__(self, tensors: Sequence[Tensor], leading: int) -> None:
        param = tensors[0]
        self.sizes = param.shape[:leading]
        self.number = prod(self.sizes)
        self.row_size = prod(param.shape[leading:])
        self._dtype = computing_dtype(param)
        real = [torch.view_as_real(t) if t.is_complex() else t for t in tensors]
        self._flat = leading == 1 or all(t.is_contiguous() for t in real)
        self._tables = [t.view(self.number, *t.shape[leading:]) if self._flat else t for t in real]

    def gather(self, rows: Tensor) -> list[Tensor]:
        """Copies of the rows (n,), each (n, *row); a Boolean marker stays Boolean."""
        if self._flat:
            found = [t.index_select(0, rows) for t in self._tables]
        else:
            at = tuple(places(rows, self.sizes))
            found = [t[at] for t in self._tables]
        return [t if t.dtype is torch.bool else t.to(self._dtype) for t in found]

    def scatter(self, rows: Tensor, values: Sequence[Tensor]) -> None:
        """Write them back, rounded once."""
        at = () if self._flat else tuple(places(rows, self.sizes))
        for table, value in zip(self._tables, values, strict=True):
            if self._flat:
                table.index_copy_(0, rows, value.to(table.dtype))
            else:
                table[at] = value.to(table.dtype)

    def pieces(self, rows: Tensor, entries: int) -> Sequence[Tensor]:
        """``rows`` in pieces of about ``entries`` entries."""
        pieces: Sequence[Tensor] = rows.split(max(entries // max(self.row_size, 1), 1))
        return pieces


def finer_rows(rows: Tensor, param: Tensor, leading: int, finer: int) -> Tensor:
    """Rows of the first ``leading`` dimensions as rows of the first ``finer`` ones."""
    if leading == finer:
        return rows
    parts = prod(param.shape[leading:finer])
    return (rows.unsqueeze(1) * parts + torch.arange(parts, device=rows.device)).view(-1)
