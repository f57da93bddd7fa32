"""A gradient of any kind: its specified entries (all, those under a mask, or listed rows), and their values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeGuard

import torch
from torch import Tensor

from maskgrad import kernels
from maskgrad.masked_tensor import MaskedTensor, from_sparse
from maskgrad.masked_tensor.tensor import listed_of, of_entries, stored_of
from maskgrad.patterns.conversion import LAYOUTS
from maskgrad.sparse import finer_rows, increasing, places, positions, prod, stored

__all__ = ["AnyGradient", "Gradient", "check_fits", "is_strided", "read", "widened_dtype"]

AnyGradient = Tensor | MaskedTensor


@dataclass(frozen=True, slots=True)
class Gradient:
    """The specified entries of a tensor of ``shape``, and their values."""

    values: Tensor
    """Of the full shape, 0 outside a mask; of rows (n, *row), 0 outside a mask."""
    shape: torch.Size
    mask: Tensor | None = None
    """Boolean, of the whole shape: entries outside it are unspecified. None: all listed ones count."""
    rows: Tensor | None = None
    """int64 (n,), in bounds: the listed rows."""
    leading: int = 0
    """Rows are those of the tensor viewed as (R, *row), R being the product of its first ``leading`` sizes."""
    each_once: bool = False
    """Whether rows are distinct."""

    @property
    def number_of_rows(self) -> int:
        """Number of rows of the tensor."""
        return prod(self.shape[: self.leading])

    def with_values(self, values: Tensor) -> Gradient:
        """The same entries with other values."""
        return replace(self, values=values)

    def wide(self, factor: Tensor | None = None) -> Gradient:
        """In at least float32, times ``factor`` (0-dim float32): sums of half-precision values may overflow."""
        values = self.values.to(widened_dtype(self.values.dtype))
        return self.with_values(values if factor is None else values * factor)

    def merged(self, ascending: bool = False) -> Gradient:
        """Merge duplicate rows, in the dtype of the values; sorted if ``ascending``."""
        known = self.rows is None or (self.each_once and not ascending)
        if known or increasing(self.rows):  # type: ignore[arg-type]
            return self
        rows, values = kernels.merge_rows(self.rows, self.values, self.number_of_rows, "sum")  # type: ignore[arg-type]
        return replace(self, rows=rows, values=values, each_once=True)

    def finer(self, leading: int) -> Gradient:
        """The same, listing rows of the first ``leading`` dimensions, which must be as many or more."""
        if self.rows is None or self.leading == leading:
            return self
        rows = finer_rows(self.rows, self.shape, self.leading, leading)
        values = self.values.reshape(-1, *self.shape[leading:])
        return replace(self, rows=rows, values=values, leading=leading)

    def whole(self) -> Tensor:
        """Values of the whole shape, 0 where unspecified."""
        if self.rows is None:
            return self.values
        flat = self.values.new_zeros(self.number_of_rows, *self.values.shape[1:])
        return flat.index_add_(0, self.rows, self.values).view(self.shape)

    def specified(self) -> Tensor:
        """Boolean (n,): the rows that are listed; of dense and masked gradients, the entries that are specified."""
        if self.rows is None:
            mask = torch.ones_like(self.values, dtype=torch.bool) if self.mask is None else self.mask
            return mask.reshape(-1)
        return self.rows.new_zeros(self.number_of_rows, dtype=torch.bool).index_fill_(0, self.rows, True)

    def counted(self, trained: Tensor | None) -> Tensor | None:
        """Boolean, of the shape of the values: specified and, if given, ``trained`` (full shape). None: all."""
        if self.rows is None:
            return self.mask if trained is None else trained if self.mask is None else self.mask & trained
        if trained is None or self.leading == 0:
            return trained if trained is None else trained.expand_as(self.values)
        return trained[self._places(self.rows)]

    def restricted(self, trained: Tensor | None) -> Gradient:
        """Only the entries under ``trained``, Boolean, of the whole shape; None: all. The cost follows the gradient."""
        if trained is None:
            return self
        if self.rows is None:
            mask = trained if self.mask is None else self.mask & trained
            return replace(self, values=torch.where(trained, self.values, 0), mask=mask)
        if self.leading == 0:  # COO without sparse dimensions: the whole tensor, possibly repeated
            whole = self.wide().values.sum(0)
            mask = trained if len(self.rows) else torch.zeros_like(trained)
            return Gradient(torch.where(trained, whole, 0), self.shape, mask)
        row_shape = self.values.shape[1:]
        if trained.numel() and not any(trained.stride()[self.leading :]):  # whole rows are trained or not
            one_per_row = trained.flatten(self.leading)[..., 0] if row_shape else trained
            kept = one_per_row[self._places(self.rows)]
            if bool(kept.all()):
                return self
            return replace(self, rows=self.rows[kept], values=self.values[kept])
        inside = trained[self._places(self.rows)]  # (n, *row)
        if bool(inside.all()):
            return self
        if self.leading == 1:
            return replace(self, values=torch.where(inside, self.values, 0), mask=trained)
        entries, chosen = self.finer(len(self.shape)), inside.view(-1)
        return replace(entries, rows=entries.rows[chosen], values=entries.values[chosen])  # type: ignore[index]

    def like(self, kind: AnyGradient) -> AnyGradient:
        """Convert to the type, layout and pattern of ``kind``, from which this one was read."""
        if self.rows is None:
            if isinstance(kind, MaskedTensor):
                return of_entries(self.values, kind.mask)
            return self.values
        if isinstance(kind, Tensor) and kind.layout is torch.sparse_coo:
            indices = places(self.rows, self.shape[: self.leading])
            return torch.sparse_coo_tensor(
                indices, self.values, self.shape, is_coalesced=increasing(self.rows), check_invariants=False
            )
        masked = from_sparse(kind) if isinstance(kind, Tensor) else kind
        listed = stored_of(masked)
        assert listed is not None
        values = listed.pattern.gathered(self.values).reshape(listed.values.shape)
        again = MaskedTensor(values, listed.pattern)
        return again.to_sparse_tensor() if isinstance(kind, Tensor) else again

    def _places(self, rows: Tensor) -> tuple[Tensor, ...]:
        return tuple(places(rows, self.shape[: self.leading]))


def read(gradient: AnyGradient, where: str) -> Gradient:
    """Convert a gradient of any kind to one form, detached; raise for bad layouts and indices."""
    shape = gradient.shape
    if isinstance(gradient, Tensor):
        gradient = gradient.detach()
        if gradient.layout is torch.strided:
            return Gradient(gradient, shape)
        if gradient.layout is torch.sparse_coo:
            indices, values = stored(gradient)
            return _of_places(indices, values, shape, where)
        _check_layout(gradient, where)
        try:
            gradient = from_sparse(gradient)
        except (ValueError, IndexError) as error:
            raise type(error)(f"{where}: {error}") from None
    listed = listed_of(gradient)
    if listed is None:
        nothing = False if gradient.dtype is torch.bool else 0
        return Gradient(gradient.filled(nothing).detach(), shape, gradient.mask)
    indices, values = listed
    return replace(_of_places(indices, values.detach(), shape, where), each_once=True)


def check_fits(param: Tensor, gradient: AnyGradient, where: str) -> None:
    """Raise a TypeError or ValueError unless type, shape, device and dtype fit; entries are not read."""
    if not isinstance(param, (Tensor, MaskedTensor)):
        raise TypeError(
            f"param must be a tensor, found {type(param).__name__}; attach one gradient to one parameter"
        )
    if not isinstance(gradient, (Tensor, MaskedTensor)):
        raise TypeError(f"{where} must be a tensor or a MaskedTensor, got {type(gradient).__name__}")
    if type(gradient).__name__ == "MaskedTensor" and not isinstance(gradient, MaskedTensor):
        raise TypeError(f"{where} is a torch.masked tensor; convert it with mg.from_torch_masked(grad)")
    if gradient.shape != param.shape:
        raise ValueError(
            f"{where} has shape {tuple(gradient.shape)}, but the parameter has shape {tuple(param.shape)}; "
            "the shapes must be equal"
        )
    if isinstance(gradient, Tensor):
        _check_layout(gradient, where)
    if gradient.device != param.device:
        raise ValueError(
            f"{where} is on {gradient.device}, but the parameter is on {param.device}; move one with .to()"
        )
    dtype = gradient.dtype
    if not (dtype.is_floating_point or (dtype.is_complex and param.is_complex())):
        raise TypeError(f"{where} has dtype {dtype}, which cannot update a parameter of dtype {param.dtype}")


def _check_layout(gradient: Tensor, where: str) -> None:
    if gradient.layout not in LAYOUTS:
        known = ", ".join(map(str, LAYOUTS))
        raise TypeError(f"{where} has layout {gradient.layout}; expected a MaskedTensor or one of {known}")


def is_strided(gradient: object) -> TypeGuard[Tensor]:
    """Return whether it is a strided tensor."""
    return isinstance(gradient, Tensor) and gradient.layout is torch.strided


def widened_dtype(dtype: torch.dtype) -> torch.dtype:
    """Float32 for half precision, complex64 for complex half precision; other dtypes unchanged."""
    return torch.promote_types(dtype, torch.float32)


def _of_places(indices: Tensor, values: Tensor, shape: torch.Size, where: str) -> Gradient:
    leading = len(indices)
    return Gradient(values, shape, rows=positions(indices, shape[:leading], where), leading=leading)
