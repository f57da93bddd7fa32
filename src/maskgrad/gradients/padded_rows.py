"""Row-sparse gradients with padded rows, for graphs in which no size may depend on values.

PyTorch/XLA has no sparse tensors, and recompiles a graph for every new size. A COO gradient does not work there:
its number of rows after merging depends on values. Here the number of rows is fixed, and
padding refers to a row that does not exist.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maskgrad.masked_tensor import MaskedTensor, from_sparse
from maskgrad.masked_tensor.tensor import stored_of
from maskgrad.sparse import require_inside

__all__ = ["PaddedRows", "supports_dynamic_shapes"]


class PaddedRows:
    r"""A gradient that lists rows of a tensor, padded to a fixed number.

    .. math:: g_r = \sum_{i:\, \mathrm{rows}_i = r} \mathrm{values}_i

    It is a masked gradient: row r is specified if it is listed. Duplicate rows are allowed; their values are added
    up, half precision in float32, before any nonlinear operation. :func:`maskgrad.attach_gradient` gives
    it to a parameter, :class:`maskgrad.nn.Embedding` with a ``capacity`` does so itself, and the optimizers of
    ``mg.optim``, clipping, norms and :class:`maskgrad.amp.GradScaler` take it like any other gradient.

    Args:
        rows: int64 or int32, shape (C,): the row of each line of ``values``; ``shape[0]`` for padding.
        values: shape (C, \*shape[1:]); padding is never read.
        shape: that of the parameter, one dimension or more.
        listed: number of leading lines that may refer to rows; None: all C.

    Gradient: none; it is a gradient itself.

    Raises:
        TypeError: ``rows`` is not an integer tensor, or ``values`` not a floating-point or complex one.
        ValueError: the shapes or devices do not fit together.

    Dense equivalent: ``gradient.to_dense()``.

    Example:
        >>> gradient = mg.PaddedRows(torch.tensor([2, 0, 3, 2]), torch.tensor([[1.], [5.], [9.], [2.]]), (3, 1))
        >>> gradient.to_masked()
        masked([[5.],
                [--],
                [3.]], layout=torch.sparse_coo)

    Source: ``jax.numpy.unique(..., size=...)``, which pads in the same way; ``tf.IndexedSlices``.
    """

    __slots__ = ("listed", "rows", "shape", "values")

    rows: Tensor
    values: Tensor
    shape: torch.Size
    listed: int

    def __init__(
        self, rows: Tensor, values: Tensor, shape: torch.Size | tuple[int, ...], listed: int | None = None
    ) -> None:
        shape = torch.Size(shape)
        _check(rows, values, shape)
        self.rows, self.values, self.shape = rows, values, shape
        self.listed = len(rows) if listed is None else listed

    def __repr__(self) -> str:
        return (
            f"PaddedRows(capacity={self.capacity}, shape={tuple(self.shape)}, dtype={self.dtype}, "
            f"device={str(self.device)!r})"
        )

    @property
    def capacity(self) -> int:
        """C, the number of rows with padding."""
        return len(self.rows)

    @property
    def used(self) -> Tensor:
        """Boolean mask (C,) of the rows that are not padding."""
        return (self.rows >= 0) & (self.rows < self.shape[0])

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the values."""
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        """Device of rows and values."""
        return self.values.device

    def detach(self) -> PaddedRows:
        """The same without a graph."""
        return self.with_values(self.values.detach())

    def __add__(self, other: PaddedRows) -> PaddedRows:
        """The sum: the concatenated rows of both, without known padding."""
        if not isinstance(other, PaddedRows):
            return NotImplemented
        if other.shape != self.shape:
            raise ValueError(
                f"gradients of shapes {tuple(self.shape)} and {tuple(other.shape)} cannot be added; the shapes must "
                "be equal"
            )
        both = (self, other)
        return PaddedRows(
            torch.cat([g.rows[: g.listed] for g in both]),
            torch.cat([g.values[: g.listed] for g in both]),
            self.shape,
        )

    def with_values(self, values: Tensor) -> PaddedRows:
        """The same rows with other values."""
        return PaddedRows(self.rows, values, self.shape, self.listed)

    def merged(self) -> PaddedRows:
        """Merge duplicate rows, in ascending order, followed by padding with zeros.

        Returns:
            C as before, or the number of the parameter's rows if that is smaller; half precision is added in float32
            and rounded once. No size depends on values; nothing is read from the device.
        """
        wide = torch.promote_types(self.dtype, torch.float32)
        height, used = self.shape[0], self.used
        rows, order = torch.where(used, self.rows, height).to(torch.int64).sort(stable=True)
        # not with index_select: PyTorch/XLA 2.9 aborts where its index comes straight from a sort
        over_rows = used.view(-1, *(1 for _ in self.shape[1:]))
        values = torch.where(over_rows, self.values, 0).to(wide)[order]
        place = F.pad((rows[1:] != rows[:-1]).to(torch.int64), (min(len(rows), 1), 0)).cumsum(0)
        capacity = min(self.capacity, height + 1)  # one for all the padding
        distinct = torch.full_like(rows[:capacity], height).scatter(0, place, rows)
        sums = values.new_zeros(capacity, *values.shape[1:]).index_add(0, place, values)
        kept = min(capacity, height)
        return PaddedRows(distinct[:kept], sums[:kept].to(self.dtype), self.shape, min(self.listed, kept))

    def resized(self, capacity: int) -> PaddedRows:
        """The same gradient padded to ``capacity`` rows; merged first, if that is fewer than now.

        Raises:
            ValueError: the gradient may have more rows.
        """
        gradient = self if self.listed <= capacity else self.merged()
        if gradient.listed > capacity:
            raise ValueError(
                f"capacity={capacity} is too small for a gradient with up to {gradient.listed} different rows; "
                f"use at least that, or the number of rows, {self.shape[0]}, which always suffices"
            )
        missing = max(capacity - gradient.capacity, 0)
        rows, values = gradient.rows[:capacity], gradient.values[:capacity]
        return PaddedRows(
            torch.cat([rows, rows.new_full((missing,), self.shape[0])]),
            torch.cat([values, values.new_zeros(missing, *self.shape[1:])]),
            self.shape,
            gradient.listed,
        )

    def to_masked(self) -> MaskedTensor:
        """A MaskedTensor of COO layout with the listed rows; synchronizes with the device, and needs sparse tensors."""
        return from_sparse(self.to_sparse_tensor())

    def to_sparse_tensor(self) -> Tensor:
        """A COO tensor of torch, coalesced; synchronizes with the device, and needs sparse tensors.

        Raises:
            IndexError: a row is below 0 or above ``shape[0]``.
        """
        merged = self.checked("this gradient").merged()
        used = merged.used
        return torch.sparse_coo_tensor(
            merged.rows[used][None],
            merged.values[used],
            self.shape,
            is_coalesced=True,
            check_invariants=False,
        )

    def to_dense(self) -> Tensor:
        """A plain tensor, 0 where unspecified; on any device, without synchronizing."""
        merged = self.merged()
        dense = merged.values.new_zeros(self.shape[0] + 1, *self.shape[1:])
        return dense.index_add(0, merged.rows, merged.values)[:-1]

    def checked(self, where: str) -> PaddedRows:
        """Check the rows and return the gradient; ``where`` is its name in errors.

        Raises:
            IndexError: a row is below 0 or above ``shape[0]``.
        """
        require_inside(self.rows, self.shape[0] + 1, f"{where}, rows (the size is one more for padding)")
        return self

    @classmethod
    def from_sparse(cls, gradient: Tensor | MaskedTensor, capacity: int) -> PaddedRows:
        """Convert a COO tensor, or COO MaskedTensor, of whole rows, padded to ``capacity`` rows.

        Raises:
            TypeError: another layout, or one with more than one sparse dimension.
            ValueError: ``capacity`` is smaller than the number of listed rows.
        """
        masked = from_sparse(gradient) if isinstance(gradient, Tensor) else gradient
        stored = stored_of(masked)
        if stored is None or masked.layout is not torch.sparse_coo or len(stored.sizes) != 1:
            raise TypeError(
                "gradient must have whole rows: COO with one sparse dimension; use gradient.to_sparse(1) of a dense "
                "tensor, or attach it unchanged"
            )
        rows = cls(stored.pattern.coordinates()[0], stored.entries, tuple(masked.shape))
        return rows.resized(capacity)


def supports_dynamic_shapes(device: torch.device) -> bool:
    """Whether sizes may depend on values on this device; on XLA each costs a copy to the host and a compilation."""
    return device.type != "xla"


def _check(rows: Any, values: Any, shape: torch.Size) -> None:
    if not isinstance(rows, Tensor) or rows.dtype not in (torch.int64, torch.int32):
        found = f"dtype {rows.dtype}" if isinstance(rows, Tensor) else type(rows).__name__
        raise TypeError(f"rows must be an int64 or int32 tensor, found {found}")
    if not isinstance(values, Tensor) or not (values.is_floating_point() or values.is_complex()):
        found = f"dtype {values.dtype}" if isinstance(values, Tensor) else type(values).__name__
        raise TypeError(f"values must be a floating-point or complex tensor, found {found}")
    if not shape:
        raise ValueError("shape must have at least one dimension, that of the rows; found ()")
    if rows.dim() != 1:
        raise ValueError(
            f"rows must have one dimension, found shape {tuple(rows.shape)}; use rows.reshape(-1)"
        )
    expected = (len(rows), *shape[1:])
    if tuple(values.shape) != expected:
        raise ValueError(
            f"values must have shape {expected}, one line for each of rows, found {tuple(values.shape)}"
        )
    if rows.device != values.device:
        raise ValueError(
            f"rows are on {rows.device} and values on {values.device}; they must be on one device: use .to()"
        )
