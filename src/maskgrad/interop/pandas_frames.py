"""pandas: nullable, Arrow-backed and ordinary columns, with their own ideas of what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from maskgrad.interop import arrow_arrays, columns
from maskgrad.masked_tensor.numpy_memory import holds_numbers, tensor_of
from maskgrad.optional_packages import require

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd

    from maskgrad.masked_tensor.tensor import MaskedTensor

__all__ = ["from_pandas", "to_pandas"]


def from_pandas(
    obj: pd.DataFrame | pd.Series[Any] | pd.Index[Any] | pd.api.extensions.ExtensionArray,
    *,
    nan_is_missing: bool = True,
    dtype: torch.dtype | None = None,
    categories: Mapping[Any, Sequence[Any]] | Sequence[Any] | None = None,
) -> MaskedTensor:
    """A pandas table or column: what pandas calls missing is unspecified.

    - Nullable columns (``Int64``, ``Float64``, ``boolean``, …, and Arrow-backed ones): ``pd.NA`` is unspecified. NaN is
      a number like any other; nothing goes through NaN, and integers stay integers.
    - Ordinary floating-point and complex columns: NaN is how pandas writes "missing" there, hence unspecified, unless
      ``nan_is_missing=False``.
    - Ordinary Boolean and integer columns: all specified. Sparse columns are read as the ordinary ones they stand for.
    - Columns of categories or text: int64 codes 0, 1, … in the order of the categories, of text in sorted order, as
      ``nn.Embedding`` takes them. A missing value is unspecified, never -1. Text is never parsed: dates and numbers
      that are stored as text (``"2024-01-05"``) become codes too. Convert them first, with ``pd.to_datetime(column)``
      and a difference, or ``pd.to_numeric(column)``.

    Codes of text depend on the words in the column: in two tables the same word may have two codes. Where they must
    be equal, as in training and test, pass ``categories``.

    Args:
        obj: DataFrame, Series, Index or extension array of numbers, Booleans, categories or text.
        nan_is_missing: whether NaN in ordinary columns means "missing".
        dtype: dtype of the result. None: the column's own; for a DataFrame, what ``torch.stack`` would promote its
            columns to (Booleans with int64 give int64, int64 with float32 gives float32).
        categories: the values of a column in the order of their codes; for a DataFrame a dict of them by the names of
            columns. Such a column is coded, whatever its dtype.

    Returns:
        MaskedTensor (n,), or (rows, columns) for a DataFrame. Index and column names are not kept.

    Memory:
        Everything is copied, once: pandas shares memory between tables until one of them is written.

    Raises:
        MissingDependencyError: pandas is not installed, or pyarrow for an Arrow-backed column.
        TypeError: ``obj`` is none of these, or a column holds dates or objects; the message names the column and the
            remedy, and nothing has been converted.
        ValueError: a value is not among ``categories``, or they name a column that does not exist.

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
    import pandas as pd

    columns.check_dtype(dtype, function)
    if isinstance(obj, pd.DataFrame):
        # by position: names may occur twice
        named = columns.categories_of_columns(categories, list(obj.columns), function)
        arrays = [(obj.iloc[:, i].array, f"column {name!r}", named[i]) for i, name in enumerate(obj.columns)]
        for array, place, values in arrays:
            _check(array, place, values)
        read = [_read(*column, nan_is_missing) for column in arrays]
        return columns.side_by_side(read, len(obj), dtype)
    if isinstance(obj, (pd.Series, pd.Index)) and not isinstance(obj, pd.MultiIndex):
        place = "obj" if obj.name is None else f"{type(obj).__name__.lower()} {obj.name!r}"
        array = obj.array
    elif isinstance(obj, pd.api.extensions.ExtensionArray):
        place, array = "obj", obj
    else:
        raise TypeError(
            f"{function}: obj must be a DataFrame, Series, Index or extension array of pandas, found "
            f"{type(obj).__name__}; convert it with pd.DataFrame(obj), or use mg.from_numpy for numpy.ma arrays"
        )
    (values,) = columns.categories_of_columns(categories, None, function)
    _check(array, place, values)
    return columns.one_column(_read(array, place, values, nan_is_missing), dtype)


def _check(array: Any, place: str, categories: Sequence[Any] | None) -> None:
    """Raise TypeError for a column of neither numbers nor categories: which, what it holds, what to do."""
    import numpy as np
    import pandas as pd

    if categories is not None or columns.has_categories(array):
        return
    dtype = array.dtype
    if isinstance(dtype, pd.ArrowDtype):
        arrow_arrays.check_type(
            dtype.pyarrow_dtype, place, "cast it, as in column.astype('Float64')", lists=False
        )
        return
    if _is_nullable(array):
        return
    stored: Any = dtype.subtype if isinstance(dtype, pd.SparseDtype) else getattr(dtype, "numpy_dtype", dtype)
    if isinstance(stored, np.dtype) and holds_numbers(stored):
        return
    if getattr(dtype, "kind", "") in "mM" or isinstance(dtype, pd.PeriodDtype):
        remedy = "express it as a number first, such as (column - origin) / pd.Timedelta('1D')"
    elif isinstance(stored, np.dtype) and stored.kind in "fc":
        remedy = "torch has no such precision: use column.astype('float64')"
    else:
        remedy = (
            "let pandas find its type with column.convert_dtypes() (True, False and missing values become 'boolean'), "
            "read numbers with pd.to_numeric(column), code its values with column.astype('category'), or leave it out"
        )
    raise TypeError(f"{place} must hold numbers, Booleans, categories or text, found dtype {dtype}; {remedy}")


def _is_nullable(array: Any) -> bool:
    import pandas as pd

    return isinstance(array, (pd.arrays.IntegerArray, pd.arrays.FloatingArray, pd.arrays.BooleanArray))


def _read(array: Any, place: str, categories: Sequence[Any] | None, nan_is_missing: bool) -> columns.Column:
    """Values and mask of a column that was checked."""
    import numpy as np
    import pandas as pd

    if categories is not None or columns.has_categories(array):
        return columns.codes_of(array, place, categories)
    if isinstance(array.dtype, pd.ArrowDtype):
        return arrow_arrays.read(array.__arrow_array__(), place)
    if _is_nullable(array):
        # na_value fills what pandas' own mask says is NA, and nothing else: NaN stays where it is
        values = tensor_of(array.to_numpy(dtype=array.dtype.numpy_dtype, na_value=0, copy=True))
        return columns.Column(place, values, ~torch.from_numpy(array.isna().astype(np.bool_)))
    values = tensor_of(np.array(array))
    if nan_is_missing and (values.is_floating_point() or values.is_complex()):
        return columns.Column(place, values, ~torch.isnan(values))
    return columns.Column(place, values, torch.ones((), dtype=torch.bool).expand(values.shape))


def to_pandas(
    x: MaskedTensor, names: Sequence[str] | None = None, index: pd.Index[Any] | None = None
) -> pd.Series[Any] | pd.DataFrame:
    """A Series of a vector, a DataFrame of a matrix, with nullable dtypes; what is unspecified is ``pd.NA``.

    Args:
        x: MaskedTensor (n,) or (rows, columns), strided, real. Half precision, which pandas' nullable dtypes lack,
            becomes ``Float32``.
        names: names of the columns of a DataFrame. None: 0, 1, …
        index: labels of the rows. None: 0, 1, …

    Returns:
        Series or DataFrame of dtype ``boolean``, ``Int8`` … ``UInt64``, ``Float32`` or ``Float64``. A specified NaN
        stays NaN.

    Zero copy:
        None, because pandas copies when it is written and tensors do not; what lay under the mask is left behind.
        Gradients do not travel.

    Raises:
        MissingDependencyError: pandas is not installed.
        TypeError: ``x`` is not a MaskedTensor, has a sparse layout, or is complex.
        ValueError: it has no dimension or more than two, or ``names`` or ``index`` do not fit.

    Example:
        >>> mg.interop.to_pandas(mg.masked(torch.tensor([1, 2]), torch.tensor([True, False])))
        0       1
        1    <NA>
        dtype: Int64
    """
    function = "mg.interop.to_pandas"
    require("pandas", function)
    import pandas as pd

    x = columns.check_masked_tensor(x, function)
    columns.check_columns(x, names, function)
    values, missing = columns.entries_in_numpy(x, function, widen=(torch.float16,))
    if index is not None and len(index) != len(values):
        raise ValueError(
            f"{function}: index must have one label for each of {len(values)} rows, found {len(index)}"
        )
    if values.ndim == 1:
        return pd.Series(_nullable(values, missing), index=index)
    rows = pd.RangeIndex(len(values)) if index is None else index
    frame = pd.DataFrame(
        {i: _nullable(values[:, i], missing[:, i]) for i in range(values.shape[1])}, index=rows
    )
    if names is not None:
        frame.columns = pd.Index(list(names))
    return frame


def _nullable(values: Any, missing: Any) -> Any:
    import pandas as pd

    kinds: dict[str, Any] = {"b": pd.arrays.BooleanArray, "f": pd.arrays.FloatingArray}
    return kinds.get(values.dtype.kind, pd.arrays.IntegerArray)(values.copy(), missing.copy())
