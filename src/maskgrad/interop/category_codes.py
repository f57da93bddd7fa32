"""Columns of text and categories as codes: 0, 1, … in the order of the categories; what is missing has none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from maskgrad.interop.columns import Column

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["categories_of_columns", "codes_of", "has_categories"]


def has_categories(array: Any) -> bool:
    """Whether a pandas array holds text or categories; objects are looked at, and nothing of them is called."""
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
    """The codes (rows,) as int64, 0 under the mask, so that a look-up may read them.

    Raises:
        ValueError: a value is not among ``categories``, or they are not unique.
    """
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
            f"{place} must have categories that differ and of which none is missing, found {list(wanted)}; "
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
    """One entry for each column of a table (``names``), or for the one column (None); None where nothing is said.

    Raises:
        TypeError: ``categories`` is of another kind.
        ValueError: it names a column that does not exist.
    """
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
