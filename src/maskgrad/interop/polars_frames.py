"""polars, whose columns are Arrow arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from maskgrad.interop.arrow_arrays import check_lists, read, read_lists, to_arrow
from maskgrad.interop.columns import check_columns, check_dtype, check_masked_tensor, one_column, side_by_side
from maskgrad.masked_tensor.sequences import check_layout
from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.optional_packages import require

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

__all__ = ["from_polars", "to_polars"]

#: polars' names of the dtypes that torch has too
NUMBERS = {
    "Boolean",
    *(f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)),
    *(f"Float{bits}" for bits in (16, 32, 64)),
}


def from_polars(
    obj: pl.Series | pl.DataFrame, dtype: torch.dtype | None = None, layout: torch.layout = torch.strided
) -> MaskedTensor:
    """A polars Series or DataFrame: null is unspecified; NaN is a number like any other, as in polars.

    Args:
        obj: Series of Booleans, integers or floating-point numbers (or of ``pl.Array`` or ``pl.List`` of them), or a
            DataFrame of such columns without arrays and lists.
        dtype: dtype of the result. None: the Series' own; for a DataFrame, what ``torch.stack`` would promote its
            columns to.
        layout: of a Series of lists: ``torch.strided`` pads them and has a Boolean mask, ``torch.jagged`` stores them
            one behind the other. Everything else is strided.

    Returns:
        MaskedTensor (n,), (n, width) for a Series of arrays, (n, longest) for one of lists (a null list is one of
        length 0), or (rows, columns).

    Memory:
        Everything is copied, once, as in :func:`maskgrad.from_arrow`.

    Raises:
        MissingDependencyError: polars or pyarrow is not installed.
        TypeError: ``obj`` is something else (collect a LazyFrame first), or a column does not hold numbers.
        ValueError: ``layout`` is jagged and a list holds a null, or it is jagged for what has no lists.

    Example:
        >>> import polars as pl
        >>> mg.from_polars(pl.DataFrame({"age": [20, None], "height": [1.5, 2.0]})).mean(0)
        masked([20.0000,  1.7500], dtype=torch.float64)
    """
    function = "mg.from_polars"
    require("polars", function)
    require("pyarrow", function)
    import polars as pl

    check_dtype(dtype, function)
    check_layout(layout)
    if isinstance(obj, pl.Series):
        place = f"series {obj.name!r}"
        if isinstance(obj.dtype, pl.List):
            inner = obj.dtype.inner
            _check(inner.inner if isinstance(inner, pl.Array) else inner, f"{place}, inside its lists,")
            return read_lists(obj.to_arrow(), place, dtype, layout, "cast it")
        check_lists(layout, function, "a Series")
        _check(obj.dtype.inner if isinstance(obj.dtype, pl.Array) else obj.dtype, place)
        return one_column(read(obj.to_arrow(), place), dtype)
    if not isinstance(obj, pl.DataFrame):
        remedy = (
            "obj.collect() reads it" if isinstance(obj, pl.LazyFrame) else "convert it with pl.DataFrame(obj)"
        )
        raise TypeError(
            f"{function}: obj must be a polars Series or DataFrame, found {type(obj).__name__}; {remedy}"
        )
    check_lists(layout, function, "a DataFrame")
    for name, kind in obj.schema.items():
        _check(kind, f"column {name!r}")
    columns = [read(column.to_arrow(), f"column {column.name!r}") for column in obj]
    return side_by_side(columns, obj.height, dtype)


def _check(kind: Any, place: str) -> None:
    """TypeError for what holds no numbers that torch has: which column, what it holds, what to do."""
    import polars as pl

    if str(kind) in NUMBERS:
        return
    if isinstance(kind, pl.Array):
        remedy = "convert it alone: it has more dimensions than the other columns"
    elif isinstance(kind, pl.List) and "inside its lists" in place:
        remedy = "only one dimension of a tensor may be ragged; of inner lists of one size make pl.Array(type, size)"
    elif isinstance(kind, pl.List):
        remedy = "lists of different lengths are converted alone, not as a column among others"
    elif kind == pl.Null:
        remedy = "it contains only nulls, and its type is unknown: use .cast(pl.Float64)"
    elif kind.is_temporal():
        remedy = "express it as a number since some origin: .to_physical() counts its own unit"
    elif kind in (pl.Categorical, pl.Enum):
        remedy = ".to_physical() numbers the categories"
    else:
        remedy = "if it can be read as numbers, use .cast(pl.Float64); .cast(pl.Categorical).to_physical() numbers text"
    raise TypeError(f"{place} must hold Booleans, integers or floating-point numbers, found {kind}; {remedy}")


def to_polars(x: MaskedTensor, names: Sequence[str] | None = None) -> pl.Series | pl.DataFrame:
    """A polars Series of a vector or of a jagged batch, a DataFrame of a matrix; what is unspecified is null.

    Args:
        x: MaskedTensor (n,) or (rows, columns), strided, or jagged; real; see :func:`to_arrow`.
        names: names of the columns of a DataFrame. None: "0", "1", …

    Returns:
        Series or DataFrame; of a jagged batch a Series of lists. A specified NaN stays NaN.

    Zero copy:
        None; see :func:`to_arrow`. Gradients do not travel.

    Raises:
        MissingDependencyError: polars or pyarrow is not installed.
        TypeError: ``x`` is not a MaskedTensor, has a sparse layout, or is complex.
        ValueError: it has no dimension or more than two, or ``names`` do not fit.

    Example:
        >>> mg.interop.to_polars(mg.from_nan(torch.tensor([1., float("nan")]))).to_list()
        [1.0, None]
    """
    function = "mg.interop.to_polars"
    require("polars", function)
    require("pyarrow", function)
    import polars as pl

    if not (isinstance(x, MaskedTensor) and x.layout == torch.jagged):
        check_columns(check_masked_tensor(x, function), names, function)
    return pl.from_arrow(to_arrow(x, names))
