"""Frames of every library: what exports Arrow, what narwhals reads, and what they need to be installed."""

from __future__ import annotations

from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

import maskgrad as mg
from tests.poison import assert_entries
from tests.unit.interop.neighbours import nan


class Array:
    """A column of a library that nobody knows, with the Arrow PyCapsule interface."""

    def __init__(self, array: pa.Array) -> None:
        self._array = array

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        return self._array.__arrow_c_array__(requested_schema)


class Stream:
    """A table, or a column in chunks, of such a library."""

    def __init__(self, table: pa.Table | pa.ChunkedArray) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


COLUMNS = {"a": [1, None, 3], "b": [0.5, nan, None]}
ENTRIES = [[1.0, 0.5], [None, nan], [3.0, None]]


@pytest.mark.parametrize(
    "frame",
    [
        Stream(pa.table(COLUMNS)),
        Array(pa.table(COLUMNS).to_struct_array().combine_chunks()),
        pl.DataFrame(COLUMNS),
        pl.LazyFrame(COLUMNS),
        pa.table(COLUMNS),
        pa.table(COLUMNS).to_batches()[0],
    ],
    ids=["arrow stream", "arrow struct", "polars", "lazy", "pyarrow", "batch"],
)
def test_frames_of_any_library(frame: object) -> None:
    assert_entries(mg.from_arrow(frame), ENTRIES, torch.float64)
    with pytest.raises(ValueError, match=r"layout=torch.jagged is for .*found a table"):
        mg.from_arrow(frame, layout=torch.jagged)


@pytest.mark.parametrize(
    "make",
    [Array, lambda array: Stream(pa.chunked_array([array[:1], array[1:]])), pl.from_arrow],
    ids=["arrow array", "arrow chunks", "polars"],
)
def test_columns_of_any_library(make: Any) -> None:
    assert_entries(mg.from_arrow(make(pa.array([2**63 - 1, None]))), [2**63 - 1, None], torch.int64)
    lists = make(pa.array([[1.0, 2.0], None, [3.0]], pa.large_list(pa.float64())))
    assert mg.from_arrow(lists, layout=torch.jagged).lengths().tolist() == [2, 0, 1]
    rows = make(pa.array([[1, 2], None], pa.list_(pa.int8(), 2)))
    assert_entries(mg.from_arrow(rows), [[1, 2], [None, None]], torch.int8)


def test_a_masked_tensor_exports_itself() -> None:
    x = mg.masked(torch.tensor([1.0, nan]), torch.tensor([True, False]))
    assert_entries(mg.from_arrow(x), [1.0, None], torch.float32)


def test_pandas_is_sent_to_its_own_function() -> None:
    for obj in (pd.DataFrame({"a": [1.0, nan]}), pd.Series([1.0])):
        with pytest.raises(
            TypeError, match=rf"found {type(obj).__name__} of pandas.*use mg.from_pandas\(obj\)"
        ):
            mg.from_arrow(obj)
    with pytest.raises(TypeError, match=r"found DataFrame; .*mg.from_arrow for polars"):
        mg.from_pandas(pl.DataFrame({"a": [1]}))


def test_sparse_and_complex_columns_with_nan() -> None:
    sparse = pd.Series([nan, 0.0, 5.0], dtype="Sparse[float64]")
    assert_entries(mg.from_pandas(sparse), [None, 0.0, 5.0])
    assert_entries(mg.from_pandas(sparse, nan_is_missing=False), [nan, 0.0, 5.0])
    numbers = pd.Series([1 + 2j, nan])
    x = mg.from_pandas(numbers)
    assert (x.mask.tolist(), x.filled(0).tolist()) == ([True, False], [1 + 2j, 0])
    assert mg.from_pandas(numbers, nan_is_missing=False).mask.all()


def test_a_column_of_objects_is_read_to_its_end() -> None:
    with pytest.raises(TypeError, match="found dtype object"):
        mg.from_pandas(pd.Series(["a"] * 200 + [1], dtype=object))
    with pytest.raises(TypeError, match=r"found dtype object; .*convert_dtypes"):
        mg.from_pandas(pd.Series([None, None], dtype=object))
