"""Columns of a table side by side: one dtype for all, one mask for each."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

import torch

from maskgrad.masked_tensor.tensor import MaskedTensor, of_entries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

__all__ = ["Column", "check_columns", "check_dtype", "check_no_names", "one_column", "side_by_side"]


class Column(NamedTuple):
    """One column as it was read.

    Attributes:
        place: how messages call it, such as ``column 'age'``.
        values: (rows,) numbers, anything where the column is missing.
        mask: (rows,) Boolean, True = specified.
        is_lent: the values are in memory that must not be written.
    """

    place: str
    values: Tensor
    mask: Tensor
    is_lent: bool = False


def check_dtype(dtype: object, function: str) -> None:
    """Refuse what is no dtype of torch, before any column is read."""
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise TypeError(
            f"{function}: dtype must be a torch.dtype or None, found {dtype!r}; use torch.float64, say"
        )


def one_column(column: Column, dtype: torch.dtype | None) -> MaskedTensor:
    """A column alone, in its own dtype unless another is asked for, and in memory of its own."""
    values = column.values if dtype is None else column.values.to(dtype)
    return of_entries(values.clone() if column.is_lent and values is column.values else values, column.mask)


def side_by_side(columns: Sequence[Column], rows: int, dtype: torch.dtype | None) -> MaskedTensor:
    """The (rows, columns) tensor, in ``dtype`` or in the one to which ``torch.stack`` promotes the columns.

    Raises:
        TypeError: torch has no common dtype for them.
    """
    if not columns:
        values = torch.empty(rows, 0, dtype=dtype)
        return of_entries(values, torch.ones(rows, 0, dtype=torch.bool))
    common = dtype or functools.reduce(_promote, columns).values.dtype
    values = torch.stack([column.values.to(common) for column in columns], dim=1)
    return of_entries(values, torch.stack([column.mask for column in columns], dim=1))


def _promote(left: Column, right: Column) -> Column:
    """A column without rows that stands for both: what was promoted to so far, and by whom."""
    try:
        common = torch.promote_types(left.values.dtype, right.values.dtype)
    except RuntimeError:  # uint16, uint32 and uint64 promote with nothing but themselves
        raise TypeError(
            f"{left.place} ({left.values.dtype}) and {right.place} ({right.values.dtype}) have no common dtype in "
            "torch; name one, as in dtype=torch.float64"
        ) from None
    place = left.place if common == left.values.dtype else right.place
    return Column(place, torch.empty(0, dtype=common), right.mask[:0])


def check_columns(x: MaskedTensor, names: Sequence[str] | None, function: str) -> None:
    """Say what is wrong with ``x`` or ``names``, if it is neither a column nor a table with names."""
    shape = tuple(x.shape)
    if len(shape) not in (1, 2):
        raise ValueError(
            f"{function}: x must have one dimension (a column) or two (rows, columns), found shape {shape}; "
            "use x.reshape(...) or x.flatten(1)"
        )
    if names is None:
        return
    if isinstance(names, str):
        raise TypeError(
            f"{function}: names must be a sequence of strings, found the string {names!r}; use [{names!r}]"
        )
    expected = shape[1] if len(shape) == 2 else 0
    if len(names) != expected:
        kind = f"one for each of {expected} columns" if len(shape) == 2 else "none for a single column"
        raise ValueError(
            f"{function}: names must be {kind}, found {len(names)}; leave it out to number the columns"
        )


def check_no_names(names: Sequence[str] | None, function: str) -> None:
    """Refuse names for a batch of sequences, which is one column."""
    if names is not None:
        raise ValueError(
            f"{function}: names must be none for the sequences of a jagged tensor, which are one column; leave it out"
        )
