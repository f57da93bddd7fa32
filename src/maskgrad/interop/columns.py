"""Columns on their way in and out: values and a mask each, one dtype side by side, codes for text, numpy's memory."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from maskgrad.masked_tensor.tensor import MaskedTensor, of_entries

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    from torch import Tensor

__all__ = [
    "Column",
    "categories_of_columns",
    "check_columns",
    "check_dtype",
    "check_masked_tensor",
    "check_real",
    "codes_of",
    "entries_in_numpy",
    "has_categories",
    "in_numpy",
    "one_column",
    "owned",
    "side_by_side",
]


#: Where another library lacks a dtype, the next one that holds all of its values.
EXACT_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.complex32: torch.complex64}


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
    """TypeError for what is not a dtype of torch, before any column is read."""
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise TypeError(
            f"{function}: dtype must be a torch.dtype or None, found {dtype!r}; use one such as torch.float64"
        )


def one_column(column: Column, dtype: torch.dtype | None) -> MaskedTensor:
    """A column alone, in its own dtype unless another is asked for, and in memory of its own."""
    return of_entries(owned(column, dtype), column.mask)


def owned(column: Column, dtype: torch.dtype | None) -> Tensor:
    """The values in ``dtype``, in memory that may be written."""
    values = column.values if dtype is None else column.values.to(dtype)
    return values.clone() if column.is_lent and values is column.values else values


def side_by_side(columns: Sequence[Column], rows: int, dtype: torch.dtype | None) -> MaskedTensor:
    """The (rows, columns) tensor, in ``dtype`` or in the one to which ``torch.stack`` promotes the columns."""
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
    if isinstance(names, str):
        raise TypeError(
            f"{function}: names must be a sequence of strings, found the string {names!r}; use [{names!r}]"
        )
    expected = shape[1] if len(shape) == 2 else 0
    if names is not None and len(names) != expected:
        kind = f"one for each of {expected} columns" if len(shape) == 2 else "none for a single column"
        raise ValueError(
            f"{function}: names must be {kind}, found {len(names)}; leave it out to number the columns"
        )


def check_masked_tensor(x: object, function: str) -> MaskedTensor:
    """Return ``x``; TypeError if it is not a MaskedTensor with a Boolean mask."""
    if not isinstance(x, MaskedTensor):
        raise TypeError(
            f"{function}: x must be a MaskedTensor, found {type(x).__name__}; wrap it in mg.masked(x)"
        )
    if x.layout != torch.strided:
        raise TypeError(
            f"{function}: x must have a strided layout, found {x.layout}; x.to_dense() allocates memory for every "
            "entry"
        )
    return x


def entries_in_numpy(
    x: MaskedTensor, function: str, widen: tuple[torch.dtype, ...] = ()
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """New arrays: real values, 0 or False where unspecified, and numpy's mask, True where an entry is *missing*."""
    check_real(x.dtype, function)
    # a copy: garbage under the mask does not travel, memory is not shared
    values = x.filled(False if x.dtype == torch.bool else 0)
    return in_numpy(values, (torch.bfloat16, *widen)), ~x.mask.cpu().numpy()


def in_numpy(values: Tensor, widen: tuple[torch.dtype, ...] = tuple(EXACT_WIDER)) -> np.ndarray[Any, Any]:
    """Values in numpy's memory, shared where they can be; dtypes among ``widen`` become wider ones."""
    plain = values.detach().cpu().resolve_conj().resolve_neg()
    return (plain.to(EXACT_WIDER[plain.dtype]) if plain.dtype in widen else plain).numpy()


def check_real(dtype: torch.dtype, function: str) -> None:
    """TypeError for a complex dtype."""
    if dtype.is_complex:
        raise TypeError(
            f"{function}: x must be real, found {dtype}; convert x.real and x.imag one after the other"
        )


def has_categories(array: Any) -> bool:
    """Whether a pandas array holds text or categories; objects are inspected, none of their methods is called."""
    import pandas as pd

    dtype = array.dtype
    if isinstance(dtype, pd.ArrowDtype):
        import pyarrow as pa

        kind = dtype.pyarrow_dtype
        return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
    if isinstance(dtype, (pd.CategoricalDtype, pd.StringDtype)):
        return True
    return (
        getattr(dtype, "kind", "") == "O"
        and pd.api.types.infer_dtype(array.to_numpy(), skipna=True) == "string"
    )


def codes_of(array: Any, place: str, categories: Iterable[Any] | None) -> Column:
    """The codes (rows,) as int64, in the order of ``categories``; 0 under the mask, where a look-up reads them."""
    import pandas as pd

    coded = array if isinstance(array, pd.Categorical) else pd.Categorical(array)
    codes = torch.from_numpy(coded.codes.astype("int64"))
    mask = codes >= 0
    codes = codes.clamp(min=0)
    if categories is None:
        return Column(place, codes, mask)
    wanted = pd.Index(list(categories))
    if not wanted.is_unique or wanted.hasnans:
        raise ValueError(
            f"{place} must have distinct categories, none of them missing, found {list(wanted)}; "
            "write list(pd.unique(values.dropna()))"
        )
    places = torch.from_numpy(wanted.get_indexer(coded.categories).astype("int64"))
    codes = places[codes] if len(places) else codes
    unknown = mask & (codes < 0)
    if unknown.any():
        first = coded[int(unknown.nonzero()[0])]
        raise ValueError(
            f"{place} has {int(unknown.sum())} values that are not among its categories, the first {first!r}; "
            "add them, or leave them unspecified: column.where(column.isin(categories))"
        )
    return Column(place, codes.clamp(min=0), mask)


def categories_of_columns(categories: Any, names: list[Any] | None, function: str) -> list[Any]:
    """One entry for each column of a table (``names``), or for one column (None); None where nothing is said."""
    if categories is None:
        return [None] * (1 if names is None else len(names))
    if names is None:
        if isinstance(categories, (str, Mapping)):
            raise TypeError(
                f"{function}: categories of one column must be a list of its values, found "
                f"{type(categories).__name__}; write categories=['a', 'b']"
            )
        return [categories]
    if not isinstance(categories, Mapping):
        raise TypeError(
            f"{function}: categories of a DataFrame must map names of columns to lists, found "
            f"{type(categories).__name__}; write categories={{'name': ['a', 'b']}}"
        )
    absent = [name for name in categories if name not in names]
    if absent:
        raise ValueError(
            f"{function}: categories names the column {absent[0]!r}, which is not in the table; it has {names}"
        )
    return [categories.get(name) for name in names]
