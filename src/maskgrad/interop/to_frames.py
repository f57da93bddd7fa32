"""To frames and columns of pandas and Arrow; unspecified entries become null, a specified NaN stays one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from maskgrad.errors import UnsupportedOperationError
from maskgrad.interop.sequences import check_masked_tensor, sequences_of
from maskgrad.masked_tensor.numpy_memory import in_numpy
from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.optional_packages import require

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    import pyarrow as pa

__all__ = ["to_arrow", "to_pandas"]


def to_pandas(
    x: MaskedTensor, names: Sequence[str] | None = None, index: pd.Index[Any] | None = None
) -> pd.Series[Any] | pd.DataFrame:
    """Convert a vector to a Series, a matrix to a DataFrame, of nullable dtypes; unspecified entries are ``pd.NA``.

    Args:
        x: MaskedTensor (n,) or (rows, columns), strided, real. Half precision, which pandas' nullable dtypes lack,
            becomes ``Float32``.
        names: names of the columns of a DataFrame. None: 0, 1, …
        index: labels of the rows. None: 0, 1, …

    Returns:
        Series or DataFrame of dtype ``boolean``, ``Int8`` … ``UInt64``, ``Float32`` or ``Float64``. A specified NaN
        stays NaN. Everything is copied, without gradients.

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

    values, missing = _entries(x, names, function, (torch.float16, torch.bfloat16))
    if index is not None and len(index) != len(values):
        raise ValueError(
            f"{function}: index must have one label for each of {len(values)} rows, found {len(index)}"
        )
    kinds: dict[str, Any] = {"b": pd.arrays.BooleanArray, "f": pd.arrays.FloatingArray}
    kind = kinds.get(values.dtype.kind, pd.arrays.IntegerArray)
    if values.ndim == 1:
        return pd.Series(kind(values, missing), index=index)
    rows = pd.RangeIndex(len(values)) if index is None else index
    columns = {i: kind(values[:, i].copy(), missing[:, i].copy()) for i in range(values.shape[1])}
    frame = pd.DataFrame(columns, index=rows)
    if names is not None:
        frame.columns = pd.Index(list(names))  # which may be duplicates
    return frame


def to_arrow(x: MaskedTensor, names: Sequence[str] | None = None) -> pa.Array | pa.Table:
    """Convert a vector to an array, a matrix to a table, a jagged batch to lists; unspecified entries are null.

    Args:
        x: MaskedTensor (n,) or (rows, columns), strided, or ``(B, T, *features)`` of layout ``torch.jagged``; real.
            bfloat16, which Arrow lacks, becomes float32.
        names: names of the columns of a table. None: "0", "1", …

    Returns:
        Array or Table of the corresponding type; for a jagged batch an array of B lists, with features in inner lists
        of a fixed size. A specified NaN stays NaN. Everything is copied, because Arrow's memory is immutable, without
        gradients.

    Raises:
        MissingDependencyError: pyarrow is not installed.
        TypeError: ``x`` is not a MaskedTensor, has a sparse layout, or is complex.
        ValueError: it has no dimension or more than two (jagged: several batch dimensions, or features of size 0), or
            ``names`` do not fit.

    Example:
        >>> mg.interop.to_arrow(mg.from_nan(torch.tensor([1., float("nan")]))).to_pylist()
        [1.0, None]
    """
    function = "mg.interop.to_arrow"
    require("pyarrow", function)
    import pyarrow as pa

    if isinstance(x, MaskedTensor) and x.layout == torch.jagged:
        if names is not None:
            raise ValueError(
                f"{function}: names must be omitted for a jagged tensor, whose sequences are one column"
            )
        return _lists(x, function)
    values, missing = _entries(x, names, function, (torch.bfloat16,))
    # contiguous columns, and from_pandas=False: NaN is not null
    if values.ndim == 1:
        return pa.array(values, mask=missing, from_pandas=False)
    columns = [
        pa.array(column, mask=absent, from_pandas=False)
        for column, absent in zip(np.ascontiguousarray(values.T), missing.T, strict=True)
    ]
    if not columns:  # a table without columns must be sliced from another to have rows
        return pa.table({"": pa.nulls(len(values), pa.int8())}).select([])
    return pa.table(columns, names=list(names or map(str, range(len(columns)))))


def _lists(x: MaskedTensor, function: str) -> pa.Array:
    """The sequences of a jagged tensor as lists."""
    import pyarrow as pa

    values, pattern = sequences_of(x, function, None)
    _check_real(values.dtype, function)
    # a copy, as Arrow's memory is immutable
    elements = pa.array(np.array(in_numpy(values, (torch.bfloat16,))).reshape(-1), from_pandas=False)
    for size in reversed(values.shape[1:]):
        if not size:
            raise ValueError(f"{function}: x of shape {tuple(x.shape)} has no features to store")
        elements = pa.FixedSizeListArray.from_arrays(elements, size)
    offsets = pattern.offsets.cpu().numpy()
    if values.shape[0] < 2**31:
        return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), elements)
    return pa.LargeListArray.from_arrays(pa.array(offsets.copy()), elements)


def _entries(
    x: MaskedTensor, names: Sequence[str] | None, function: str, widened: tuple[torch.dtype, ...]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """New arrays: the values of a column or table, 0 or False where unspecified, and the mask of *missing* entries."""
    x = check_masked_tensor(x, function)
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
    if names is not None and len(names) != sum(shape[1:]):
        kind = f"one for each of {shape[1]} columns" if len(shape) == 2 else "none for a single column"
        raise ValueError(
            f"{function}: names must be {kind}, found {len(names)}; omit it to number the columns"
        )
    _check_real(x.dtype, function)
    # a copy, without garbage under the mask or shared memory
    return in_numpy(x.filled(False if x.dtype == torch.bool else 0), widened), ~x.mask.cpu().numpy()


def _check_real(dtype: torch.dtype, function: str) -> None:
    if dtype.is_complex:
        raise TypeError(f"{function}: x must be real, found {dtype}; convert x.real and x.imag separately")


def _arrow_c_array(self: MaskedTensor, requested_schema: Any = None) -> Any:
    """Export a vector with nulls where unspecified, by the Arrow PyCapsule interface."""
    if len(self.shape) != 1:
        raise UnsupportedOperationError(
            "MaskedTensor.__arrow_c_array__",
            f"an Arrow array must be a vector, but this has shape {tuple(self.shape)}",
            "Use mg.interop.to_arrow(x) for a table from a matrix, or pl.from_arrow of it for polars.",
        )
    return to_arrow(self).__arrow_c_array__(requested_schema)


MaskedTensor.__arrow_c_array__ = _arrow_c_array  # type: ignore[attr-defined]
