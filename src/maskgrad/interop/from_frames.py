"""From frames and columns of pandas, polars, Arrow and other libraries that narwhals reads."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from maskgrad.interop.columns import (
    Column,
    codes_of,
    has_categories,
    read,
    read_lists,
    series_of,
    shape_of_lists,
)
from maskgrad.masked_tensor.sequences import check_layout
from maskgrad.masked_tensor.tensor import MaskedTensor, of_entries
from maskgrad.optional_packages import require

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

__all__ = ["from_arrow", "from_pandas"]


def from_pandas(
    obj: pd.DataFrame | pd.Series[Any] | pd.Index[Any] | pd.api.extensions.ExtensionArray,
    *,
    nan_is_missing: bool = True,
    dtype: torch.dtype | None = None,
    categories: Mapping[Any, Sequence[Any]] | Sequence[Any] | None = None,
) -> MaskedTensor:
    """Convert a pandas (or modin) table or column: missing values are unspecified.

    - Nullable columns (``Int64``, ``Float64``, ``boolean``, Arrow-backed): ``pd.NA`` is missing, NaN is a number like
      any other. Integers stay integers.
    - Ordinary floating-point and complex columns: NaN is missing, unless ``nan_is_missing=False``.
    - Ordinary Boolean and integer columns: all specified. Sparse columns are read as dense ones.
    - Columns of categories or text: int64 codes 0, 1, … in the order of the categories (text: sorted), as
      ``nn.Embedding`` takes them. A missing value is unspecified, never -1. Text is never parsed: convert dates and
      numbers stored as text first, with ``pd.to_datetime(column)`` and a difference, or ``pd.to_numeric(column)``.

    Codes of text depend on the words in the column. Where they must be equal in two tables, as in training and test,
    pass ``categories``.

    Args:
        obj: DataFrame, Series, Index or extension array of numbers, Booleans, categories or text.
        nan_is_missing: whether NaN in ordinary columns means "missing".
        dtype: dtype of the result. None: the column's own; for a DataFrame, the one to which ``torch.stack`` promotes
            its columns (Booleans with int64 give int64, int64 with float32 gives float32).
        categories: the values of a column in the order of their codes; for a DataFrame a dict by column name.
            Such a column is coded, for any dtype.

    Returns:
        MaskedTensor (n,), or (rows, columns) for a DataFrame. Index and column names are not kept.

    Memory:
        Everything is copied.

    Raises:
        MissingDependencyError: pandas or narwhals is not installed.
        TypeError: ``obj`` has another type, or a column contains dates or objects; the message names the column.
        ValueError: a value is not among ``categories``, or they contain an unknown column.

    Example:
        >>> import pandas as pd
        >>> mg.from_pandas(pd.Series([1, None, 3], dtype="Int64"))
        masked([1, --, 3])
        >>> mg.from_pandas(pd.DataFrame({"age": [20., None], "height": [1.5, 2.0]})).mean(0)
        masked([20.0000,  1.7500], dtype=torch.float64)
        >>> mg.from_pandas(pd.Series(["UA", None, "AA"]), categories=["AA", "DL", "UA"])
        masked([2, --, 0])
    """
    function = "mg.from_pandas"
    require("pandas", function)
    nw: Any = require("narwhals", function)
    import pandas as pd

    _check_dtype(dtype, function)
    if nw.dependencies.is_modin_dataframe(obj) or nw.dependencies.is_modin_series(obj):
        obj = nw.from_native(obj, allow_series=True).to_pandas()
    names = list(obj.columns) if isinstance(obj, pd.DataFrame) else None
    if isinstance(obj, pd.DataFrame):
        # by position: names may be duplicates
        found = [(f"column {name!r}", obj.iloc[:, i]) for i, name in enumerate(obj.columns)]
    elif isinstance(obj, (pd.Series, pd.Index, pd.api.extensions.ExtensionArray)) and not isinstance(
        obj, pd.MultiIndex
    ):
        name = getattr(obj, "name", None)
        place = "obj" if name is None else f"{type(obj).__name__.lower()} {name!r}"
        found = [(place, pd.Series(obj, copy=False))]
    else:
        raise TypeError(
            f"{function}: obj must be a DataFrame, Series, Index or extension array of pandas, found "
            f"{type(obj).__name__}; convert it with pd.DataFrame(obj), or use mg.from_numpy for numpy.ma arrays, "
            "mg.from_arrow for polars and other frames"
        )
    values = _categories(categories, names, function)
    columns = [
        codes_of(column, place, wanted)
        if wanted is not None or has_categories(column)
        else read(nw.from_native(column, series_only=True), place, nan_is_missing)
        for (place, column), wanted in zip(found, values, strict=True)
    ]
    return _together(columns, None if names is None else len(obj), dtype)


def _categories(categories: Any, names: list[Any] | None, function: str) -> list[Any]:
    """The categories of each column of a table (``names``), or of a single column (None)."""
    if categories is None:
        return [None] * (1 if names is None else len(names))
    if isinstance(categories, str) or isinstance(categories, Mapping) == (names is None):
        wanted = (
            ("of one column must be a list of its values", "['a', 'b']")
            if names is None
            else ("of a DataFrame must map names of columns to lists", "{'name': ['a', 'b']}")
        )
        raise TypeError(
            f"{function}: categories {wanted[0]}, found {type(categories).__name__}; use categories={wanted[1]}"
        )
    if names is None:
        return [categories]
    absent = [name for name in categories if name not in names]
    if absent:
        raise ValueError(
            f"{function}: categories contains the column {absent[0]!r}, which is not in the table; it has {names}"
        )
    return [categories.get(name) for name in names]


def from_arrow(
    obj: Any, dtype: torch.dtype | None = None, layout: torch.layout = torch.strided
) -> MaskedTensor:
    """Convert Arrow data, or a frame that can be exported as such: null is unspecified; NaN is a number like any other.

    Args:
        obj: pyarrow Array, ChunkedArray, RecordBatch or Table; any object with the Arrow PyCapsule interface
            (``__arrow_c_array__`` or ``__arrow_c_stream__``); or any frame that narwhals reads, except pandas and modin
            (polars, DuckDB relations, Ibis tables, …); a lazy one is collected. Columns hold Booleans, integers
            or floating-point numbers; a single array may contain lists of them, or lists of one fixed size in lists.
        dtype: dtype of the result. None: the array's own; for a table, the one to which ``torch.stack`` promotes its
            columns (int64 with float32 gives float32).
        layout: for lists of different lengths: ``torch.strided`` pads them, with a Boolean mask, ``torch.jagged``
            concatenates them. Everything else is strided.

    Returns:
        MaskedTensor (n,), (n, size) for lists of a fixed size (a null list is unspecified as a whole), (n, longest)
        for others (a null list has length 0), or (rows, columns) for a table. Column names and metadata are not
        kept.

    Memory:
        Everything is copied: Arrow's memory is immutable, and a MaskedTensor can be modified in place. A column without
        null has no mask in memory.

    Raises:
        MissingDependencyError: pyarrow or narwhals is not installed.
        TypeError: ``obj`` is none of these, or a column does not contain numbers; the message names the column.
        ValueError: ``layout`` is jagged and a list contains a null, or it is jagged for columns without lists.

    Example:
        >>> import pyarrow as pa
        >>> mg.from_arrow(pa.array([1, None, 3]))
        masked([1, --, 3])
        >>> mg.from_arrow(pa.array([[1, 2], [3]]), layout=torch.jagged).lengths()
        tensor([2, 1])
        >>> mg.from_arrow(pa.array([1., None, float("nan")])).mask
        tensor([ True, False,  True])
    """
    function = "mg.from_arrow"
    require("pyarrow", function)
    require("narwhals", function)
    import pyarrow as pa

    if type(obj).__module__.startswith("awkward"):  # Arrow's lists are wrapped in extension types by default
        raise TypeError(
            f"mg.from_arrow: obj must be Arrow data, found {type(obj).__name__} of awkward; use "
            "mg.from_arrow(ak.to_arrow(array, extensionarray=False))"
        )
    data = obj if isinstance(obj, (pa.Table, pa.RecordBatch, pa.Array, pa.ChunkedArray)) else _in_arrow(obj)
    if isinstance(data, (pa.Table, pa.RecordBatch)):
        columns = [(f"column {field.name!r}", data.column(i)) for i, field in enumerate(data.schema)]
        return _convert(columns, data.num_rows, dtype, layout, function)
    return _convert([("obj", data)], None, dtype, layout, function)


def _in_arrow(obj: Any) -> Any:
    """Arrow's array or table of another library's column or frame."""
    import narwhals as nw
    import pyarrow as pa

    frame = nw.from_native(obj, pass_through=True, allow_series=True)
    if isinstance(frame, nw.LazyFrame):
        frame = frame.collect("pyarrow")
    if isinstance(frame, (nw.DataFrame, nw.Series)):
        if frame.implementation in (nw.Implementation.PANDAS, nw.Implementation.MODIN):
            raise TypeError(
                f"mg.from_arrow: obj must be Arrow data, found {type(obj).__name__} of "
                f"{frame.implementation.value}, where NaN may mean missing; use mg.from_pandas(obj)"
            )
        return frame.to_arrow()
    if hasattr(obj, "__arrow_c_stream__"):
        data = pa.chunked_array(obj)
    elif hasattr(obj, "__arrow_c_array__"):
        data = pa.array(obj)
    else:
        raise TypeError(
            "mg.from_arrow: obj must be a pyarrow Array, ChunkedArray, RecordBatch or Table, or a frame that exports "
            f"Arrow, found {type(obj).__name__}; convert it with pa.array(obj) or pa.table(obj)"
        )
    return pa.Table.from_struct_array(data) if pa.types.is_struct(data.type) else data


def _convert(
    natives: Sequence[tuple[str, Any]],
    rows: int | None,
    dtype: torch.dtype | None,
    layout: torch.layout,
    function: str,
) -> MaskedTensor:
    """Convert the columns of a table with ``rows``, or a single column (None), which may contain lists."""
    _check_dtype(dtype, function)
    check_layout(layout)
    series = [(place, series_of(native)) for place, native in natives]
    if rows is None and shape_of_lists(series[0][1]) == "ragged":
        return read_lists(series[0][1], series[0][0], dtype, layout)
    if layout == torch.jagged:
        raise ValueError(
            f"{function}: layout=torch.jagged is for one array of lists of different lengths, found "
            f"{'an array of other values' if rows is None else 'a table'}; omit layout"
        )
    return _together([read(one, place, is_alone=rows is None) for place, one in series], rows, dtype)


def _check_dtype(dtype: object, function: str) -> None:
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise TypeError(
            f"{function}: dtype must be a torch.dtype or None, found {dtype!r}; use one such as torch.float64"
        )


def _together(columns: Sequence[Column], rows: int | None, dtype: torch.dtype | None) -> MaskedTensor:
    """Combine columns to (rows, columns), promoted as ``torch.stack`` does; ``rows`` None: a single column, (n,)."""
    if rows is not None and not columns:
        return of_entries(torch.empty(rows, 0, dtype=dtype), torch.ones(rows, 0, dtype=torch.bool))
    try:
        common = dtype or functools.reduce(torch.promote_types, [column.values.dtype for column in columns])
    except RuntimeError:  # uint16, uint32 and uint64 only promote with themselves
        first = {column.values.dtype: column.place for column in reversed(columns)}
        found = " and ".join(f"{place} ({kind})" for kind, place in reversed(first.items()))
        raise TypeError(
            f"{found} have no common dtype in torch; pass one, as in dtype=torch.float64"
        ) from None
    if rows is None:
        return of_entries(columns[0].values.to(common), columns[0].mask)
    values = torch.stack([column.values.to(common) for column in columns], dim=1)
    return of_entries(values, torch.stack([column.mask for column in columns], dim=1))
