"""Row-sparse gradients in a fixed number of slots, for graphs in which no size may depend on numbers.

PyTorch/XLA has no sparse tensors, and compiles a graph anew for every size that it has not seen. A COO gradient fits
neither: how many rows it has after merging is known only when the numbers are. Here the number of slots is fixed,
and a slot that holds no row says so by naming a row that does not exist.
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
    r"""A gradient that specifies rows of a tensor, in slots of which some may be unused.

    .. math:: g_r = \sum_{i:\, \mathrm{rows}_i = r} \mathrm{values}_i

    It is the masked gradient of which row r is specified if a slot names it. Several slots may name one row; their
    values are added up, halves in float32, before anything nonlinear is done with them.
    :func:`maskgrad.attach_gradient` gives it to a parameter, :class:`maskgrad.nn.Embedding` with a ``capacity`` does
    so by itself, and the optimizers of ``mg.optim``, clipping, norms and :class:`maskgrad.amp.GradScaler` take it like
    any other.

    Args:
        rows: int64 or int32, shape (C,): the row that each slot holds; ``shape[0]`` in an unused slot.
        values: shape (C, \*shape[1:]); what stands in an unused slot is never read.
        shape: that of the parameter, one dimension or more.
        listed: how many slots, the first ones, may be in use; None: all of them.

    Gradient: none flows through; it is one.

    Raises:
        TypeError: ``rows`` is no integer tensor, or ``values`` no floating-point or complex one.
        ValueError: the shapes or devices do not fit together.

    Dense equivalent: ``gradient.to_dense()``.

    Example:
        >>> gradient = mg.PaddedRows(torch.tensor([2, 0, 3, 2]), torch.tensor([[1.], [5.], [9.], [2.]]), (3, 1))
        >>> gradient.to_masked()
        masked([[5.],
                [--],
                [3.]], layout=torch.sparse_coo)

    Source: ``jax.numpy.unique(..., size=...)``, which fills up in the same way; ``tf.IndexedSlices``.
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
        """How many slots there are."""
        return len(self.rows)

    @property
    def used(self) -> Tensor:
        """Whether a slot holds a row, for each slot."""
        return (self.rows >= 0) & (self.rows < self.shape[0])

    @property
    def dtype(self) -> torch.dtype:
        """That of the values."""
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        """Where rows and values are."""
        return self.values.device

    def detach(self) -> PaddedRows:
        """The same without a history."""
        return self.with_values(self.values.detach())

    def __add__(self, other: PaddedRows) -> PaddedRows:
        """The sum: the slots of both that may be in use, one after the other."""
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
        """The same slots with other values."""
        return PaddedRows(self.rows, values, self.shape, self.listed)

    def merged(self) -> PaddedRows:
        """Each row in one slot, ascending, the unused slots behind them and 0 in these.

        Returns:
            As many slots as before, or as the parameter has rows if those are fewer; halves are added in float32 and
            rounded once. All sizes follow from sizes; nothing is read from the device.
        """
        wide = torch.promote_types(self.dtype, torch.float32)
        height, used = self.shape[0], self.used
        rows, order = torch.where(used, self.rows, height).to(torch.int64).sort(stable=True)
        # not with index_select: PyTorch/XLA 2.9 aborts where its index comes straight from a sort
        values = torch.where(_over_rows(used, self.values), self.values, 0).to(wide)[order]
        slot = F.pad((rows[1:] != rows[:-1]).to(torch.int64), (min(len(rows), 1), 0)).cumsum(0)
        capacity = min(self.capacity, height + 1)  # one for everything that is unused
        distinct = torch.full_like(rows[:capacity], height).scatter(0, slot, rows)
        sums = values.new_zeros(capacity, *values.shape[1:]).index_add(0, slot, values)
        kept = min(capacity, height)
        return PaddedRows(distinct[:kept], sums[:kept].to(self.dtype), self.shape, min(self.listed, kept))

    def resized(self, capacity: int) -> PaddedRows:
        """The same gradient in ``capacity`` slots; merged first, if there are fewer of them than now.

        Raises:
            ValueError: so many slots might not do for all the rows.
        """
        gradient = self if self.listed <= capacity else self.merged()
        if gradient.listed > capacity:
            raise ValueError(
                f"capacity={capacity} is too small for a gradient that may name {gradient.listed} different rows; "
                f"use at least that, or the number of rows, {self.shape[0]}, which always does"
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
        """A MaskedTensor of COO layout with the specified rows; waits for the device, and needs sparse tensors."""
        return from_sparse(self.to_sparse_tensor())

    def to_sparse_tensor(self) -> Tensor:
        """A COO tensor of torch, coalesced; waits for the device, and needs sparse tensors.

        Raises:
            IndexError: a slot names a row below 0 or above ``shape[0]``.
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
        """A plain tensor, 0 where nothing is specified; on any device, without waiting for it."""
        merged = self.merged()
        dense = merged.values.new_zeros(self.shape[0] + 1, *self.shape[1:])
        return dense.index_add(0, merged.rows, merged.values)[:-1]

    def checked(self, where: str) -> PaddedRows:
        """Itself, after a look at the rows, which ``where`` calls by a name.

        Raises:
            IndexError: a row is below 0 or above ``shape[0]``.
        """
        require_inside(self.rows, self.shape[0] + 1, f"{where}, rows (the size is one more for unused slots)")
        return self

    @classmethod
    def from_sparse(cls, gradient: Tensor | MaskedTensor, capacity: int) -> PaddedRows:
        """A COO tensor, or MaskedTensor of COO layout, that lists whole rows, in ``capacity`` slots.

        Raises:
            TypeError: another layout, or one with more than one sparse dimension.
            ValueError: ``capacity`` is smaller than the number of rows that are listed.
        """
        masked = from_sparse(gradient) if isinstance(gradient, Tensor) else gradient
        stored = stored_of(masked)
        if stored is None or masked.layout is not torch.sparse_coo or len(stored.sizes) != 1:
            raise TypeError(
                "gradient must list whole rows: COO with one sparse dimension; use gradient.to_sparse(1) of a dense "
                "tensor, or attach it as it is"
            )
        rows = cls(stored.pattern.coordinates()[0], stored.entries, tuple(masked.shape))
        return rows.resized(capacity)


def supports_dynamic_shapes(device: torch.device) -> bool:
    """Whether a size may depend on numbers there; on XLA that costs a copy to the host and a compilation each time."""
    return device.type != "xla"


def _over_rows(used: Tensor, values: Tensor) -> Tensor:
    """``used`` (C,) in a shape that broadcasts to ``values`` (C, *row)."""
    return used.view(-1, *(1 for _ in values.shape[1:]))


def _check(rows: Any, values: Any, shape: torch.Size) -> None:
    if not isinstance(rows, Tensor) or rows.dtype not in (torch.int64, torch.int32):
        found = f"dtype {rows.dtype}" if isinstance(rows, Tensor) else type(rows).__name__
        raise TypeError(f"rows must be an int64 or int32 tensor, found {found}")
    if not isinstance(values, Tensor) or not (values.is_floating_point() or values.is_complex()):
        found = f"dtype {values.dtype}" if isinstance(values, Tensor) else type(values).__name__
        raise TypeError(f"values must be a floating-point or complex tensor, found {found}")
    if not shape:
        raise ValueError("shape must have a dimension, the one that rows count; found ()")
    if rows.dim() != 1:
        raise ValueError(
            f"rows must have one dimension, found shape {tuple(rows.shape)}; use rows.reshape(-1)"
        )
    expected = (len(rows), *shape[1:])
    if tuple(values.shape) != expected:
        raise ValueError(f"values must have shape {expected}, one row per slot, found {tuple(values.shape)}")
    if rows.device != values.device:
        raise ValueError(
            f"rows are on {rows.device} and values on {values.device}; move one with .to(), for they belong together"
        )
