"""One column of numbers, lists or categories, as values and a mask; read with narwhals for every library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from maskgrad.masked_tensor.numpy_memory import holds_numbers, tensor_of
from maskgrad.masked_tensor.sequences import from_offsets
from maskgrad.masked_tensor.tensor import MaskedTensor, of_entries
from maskgrad.optional_packages import require

if TYPE_CHECKING:
    from collections.abc import Sequence

    import narwhals as nw
    import pandas as pd

__all__ = ["Column", "codes_of", "has_categories", "read", "read_lists", "series_of", "shape_of_lists"]


class Column(NamedTuple):
    """A name for messages; copied values, arbitrary where missing; and their mask."""

    place: str
    values: Tensor
    mask: Tensor


def series_of(native: Any) -> nw.Series[Any]:
    """A column of any library, or a pyarrow Array, as a Series of narwhals."""
    import narwhals as nw

    if type(native).__module__.startswith("pyarrow") and not hasattr(native, "chunks"):
        import pyarrow as pa

        native = pa.chunked_array([native])
    return nw.from_native(native, series_only=True)


def read(series: nw.Series[Any], place: str, nan_is_missing: bool = True, is_alone: bool = False) -> Column:
    """Read numbers or Booleans, and, for a single column, lists of one size; narwhals' null is missing.

    Raises:
        TypeError: the column has another dtype; the message ends with a remedy.
    """
    if is_alone and shape_of_lists(series) == "fixed":
        return _rows(series, place)
    kind = _check_numbers(series, place)
    known = ~series.is_null().to_numpy()
    is_ordinary = isinstance(getattr(kind, "subtype", kind), np.dtype)  # of pandas, where only NaN is missing
    if known.all() or (is_ordinary and not nan_is_missing):
        mask = torch.ones((), dtype=torch.bool).expand(len(known))
    else:
        mask = torch.from_numpy(known)
        series = series if is_ordinary else series.fill_null(False if str(series.dtype) == "Boolean" else 0)
    return Column(place, tensor_of(np.array(series.to_numpy())), mask)


def _kind(series: nw.Series[Any]) -> Any:
    """The dtype as named by the column's own library."""
    native: Any = series.to_native()
    return native.type if hasattr(native, "type") else native.dtype


#: dtypes of torch, as named by polars or Arrow
_NUMBERS = {
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *("bool", "boolean", "float16", "float32", "float64", "halffloat", "float", "double"),
}

#: Remedies: dates to numbers, parsable values to numbers, and codes of other values.
_REMEDIES = {
    "pandas": (
        "(column - origin) / pd.Timedelta('1D')",
        "column.convert_dtypes(), pd.to_numeric(column) or column.astype('float64')",
        "column.astype('category')",
    ),
    "pyarrow": ("array.cast(pa.int64())", "array.cast(pa.float64())", "array.dictionary_encode().indices"),
}


def _check_numbers(series: nw.Series[Any], place: str) -> Any:
    """Return the dtype as named by the column's library; TypeError if torch does not have it."""
    kind, library = _kind(series), series.implementation.value
    is_pandas = library == "pandas"
    stored = getattr(kind, "subtype", getattr(kind, "numpy_dtype", kind))
    if kind.kind in "biufc" and holds_numbers(stored) if is_pandas else str(kind).lower() in _NUMBERS:
        return kind
    date, cast, code = _REMEDIES[library]
    if shape_of_lists(series):
        remedy = "convert lists separately, with inner lists of one size: pa.list_(type, size) or pl.Array(type, size)"
    elif "inside its lists" in place:
        remedy = "cast the lists: array.cast(pa.list_(pa.float64())), column.cast(pl.List(pl.Float64))"
    elif series.dtype.is_temporal() or str(kind).startswith("period"):
        remedy = f"express it as a number since some origin, such as {date}"
    else:
        remedy = f"if it can be parsed as numbers, use {cast}; for codes of its values, {code}"
    allowed = "numbers, Booleans, categories or text" if is_pandas else "numbers or Booleans"
    raise TypeError(f"{place} must contain {allowed}, found dtype {kind}; {remedy}")


# ---------------------------------------------------------------- lists


def shape_of_lists(series: nw.Series[Any]) -> str:
    """``"fixed"`` for lists of one size, ``"ragged"`` for lists of different lengths, else empty."""
    name = str(_kind(series)).lower()
    if name.startswith(("fixed_size_list<", "array(")):
        return "fixed"
    return "ragged" if name.startswith(("list", "large_list")) else ""


def _array(series: nw.Series[Any]) -> Any:
    """The column as one pyarrow array."""
    require("pyarrow", "a column of lists")
    import pyarrow as pa

    found = series.to_arrow()
    return pa.concat_arrays(found.chunks or [pa.array([], found.type)]) if hasattr(found, "chunks") else found


def _rows(series: nw.Series[Any], place: str) -> Column:
    """Lists of one size, (rows, size); a null list is missing as a whole."""
    array = _array(series)
    size, length = array.type.list_size, len(array)
    # .values is the whole child, which ignores our offset; .flatten() would drop null lists
    elements = series_of(array.values.slice(array.offset * size, length * size))
    _, values, mask = read(elements, f"{place}, inside its lists,")
    known = torch.from_numpy(array.is_valid().to_numpy(zero_copy_only=False))
    return Column(place, values.reshape(length, size), mask.reshape(length, size) & known[:, None])


def read_lists(
    series: nw.Series[Any], place: str, dtype: torch.dtype | None, layout: torch.layout
) -> MaskedTensor:
    """Read lists of different lengths, jagged or with a Boolean mask; a null list is empty."""
    array = _array(series)
    import pyarrow.compute as pc

    counts = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    offsets = torch.nn.functional.pad(torch.from_numpy(counts.astype("int64")).cumsum(0), (1, 0))
    _, values, mask = read(series_of(array.flatten()), f"{place}, inside its lists,", is_alone=True)
    batch = from_offsets(values.to(dtype or values.dtype), offsets)
    if layout == torch.strided:
        known = MaskedTensor(mask.contiguous(), batch._pattern).filled(False)
        return of_entries(batch.to_dense()._values, known)
    if not bool(mask.all()):
        row = int((~mask).reshape(len(mask), -1).any(1).nonzero()[0])
        sequence = int(torch.searchsorted(offsets, row, right=True)) - 1
        raise ValueError(
            f"{place} has a null at position {row - int(offsets[sequence])} of list {sequence}, but a jagged tensor "
            "has no gaps; use layout=torch.strided, with a Boolean mask"
        )
    return batch


# ---------------------------------------------------------------- text and categories of pandas


def has_categories(native: pd.Series[Any]) -> bool:
    """Return whether a column contains text or categories; objects are inspected without calling their methods."""
    import pandas as pd

    kind: Any = native.dtype
    if isinstance(kind, pd.ArrowDtype):
        return str(kind.pyarrow_dtype) in ("string", "large_string", "string_view")
    if isinstance(kind, (pd.CategoricalDtype, pd.StringDtype)):
        return True
    return kind == np.dtype(object) and pd.api.types.infer_dtype(native, skipna=True) == "string"


def codes_of(native: pd.Series[Any], place: str, categories: Sequence[Any] | None) -> Column:
    """The codes (rows,) as int64, in the order of ``categories``; 0 under the mask, where lookups read them."""
    import pandas as pd

    coded = pd.CategoricalIndex(native)
    wanted = coded.categories if categories is None else pd.Index(list(categories))
    if not wanted.is_unique or wanted.hasnans:
        raise ValueError(
            f"{place} must have distinct categories without missing ones, found {list(wanted)}; "
            "write list(pd.unique(values.dropna()))"
        )
    codes = wanted.get_indexer(coded)
    known = np.logical_not(coded.isna())
    unknown = known & (codes < 0)
    if unknown.any():
        raise ValueError(
            f"{place} has {unknown.sum()} values that are not among its categories, the first "
            f"{coded[unknown][0]!r}; add them, or mask them: column.where(column.isin(categories))"
        )
    return Column(place, torch.from_numpy(codes.clip(0).astype("int64")), torch.from_numpy(known))
