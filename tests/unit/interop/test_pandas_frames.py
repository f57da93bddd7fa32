"""pandas: three conventions for what is missing, none of them confused with another."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

import maskgrad as mg
from tests.poison import assert_entries, poisoned
from tests.unit.interop.neighbours import COLUMNS, FLOATS, INTEGERS, as_dtype, inf, nan

NULLABLE = {
    torch.bool: "boolean",
    torch.float32: "Float32",
    torch.float64: "Float64",
    **{d: str(d).removeprefix("torch.").replace("int", "Int").replace("uI", "UI") for d in INTEGERS},
}


@pytest.mark.parametrize("dtype", NULLABLE, ids=str)
@pytest.mark.parametrize("column", COLUMNS, ids=["full", "some", "nothing", "empty"])
def test_nullable_dtypes_there_and_back(column: list[int | None], dtype: torch.dtype) -> None:
    entries = as_dtype(column, dtype)
    series = pd.Series(entries, dtype=NULLABLE[dtype])
    for obj in (series, series.array, pd.Index(series)):
        assert_entries(mg.from_pandas(obj), entries, dtype)
    back = mg.interop.to_pandas(mg.from_pandas(series))
    pd.testing.assert_series_equal(back, series)


@pytest.mark.parametrize(
    "array",
    [
        pd.arrays.FloatingArray(np.array([nan, 9.0, 1.0]), np.array([False, True, False])),
        pd.arrays.ArrowExtensionArray(pa.array([nan, None, 1.0])),
    ],
    ids=["Float64", "arrow"],
)
@pytest.mark.parametrize("nan_is_missing", [True, False])
def test_nan_in_a_nullable_column_is_a_number(array: object, nan_is_missing: bool) -> None:
    x = mg.from_pandas(pd.Series(array), nan_is_missing=nan_is_missing)
    assert_entries(x, [nan, None, 1.0], torch.float64)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.complex64, torch.complex128], ids=str)
def test_nan_in_an_ordinary_column_is_missing(dtype: torch.dtype) -> None:
    numbers = torch.tensor([1.0, nan, inf], dtype=dtype).numpy()
    series = pd.Series(numbers)
    x = mg.from_pandas(series)
    assert x.dtype == dtype
    assert x.mask.tolist() == [True, False, True]
    assert mg.from_pandas(series, nan_is_missing=False).mask.tolist() == [True] * 3


@pytest.mark.parametrize("dtype", [">f8", "<f8", ">f4", ">f2", ">i4", ">u2", ">c8"])
def test_foreign_byte_order(dtype: str) -> None:
    numbers = np.array([1, 2, 3]).astype(dtype)
    x = mg.from_pandas(pd.Series(numbers))
    assert x.filled(0).tolist() == numbers.tolist()
    assert_entries(x.real if x.dtype.is_complex else x, [1, 2, 3])
    assert mg.from_numpy(np.ma.array(numbers, mask=[1, 0, 0])).mask.tolist() == [False, True, True]


def test_pandas_memory_is_not_shared() -> None:
    numbers = np.array([1.0, 2.0])
    numbers.flags.writeable = False
    of_arrow = pd.Series(pd.arrays.ArrowExtensionArray(pa.array([1.0, 2.0])))
    nullable = pd.Series([1.0, 2.0], dtype="Float64")
    for series in (
        pd.Series([1.0, 2.0]),
        nullable,
        pd.Series([1, 2]),
        of_arrow,
        pd.Series(numbers, copy=False),
    ):
        mg.from_pandas(series).zero_()
        assert series.tolist() == [1, 2]
    data = torch.tensor([1.0, 2.0])
    series = mg.interop.to_pandas(mg.masked(data))
    data.zero_()
    assert series.tolist() == [1.0, 2.0]


def test_frames_there_and_back() -> None:
    x = poisoned([[1.0, None], [None, None], [5.0, 6.0]])
    frame = mg.interop.to_pandas(x, ["a", "a"], pd.Index(["p", "q", "r"]))
    assert list(frame.columns) == ["a", "a"]
    assert list(frame.index) == ["p", "q", "r"]
    assert_entries(mg.from_pandas(frame), x.tolist(), torch.float64)
    assert list(mg.interop.to_pandas(x).columns) == [0, 1]
    for shape in ((0, 2), (3, 0), (0, 0)):
        back = mg.interop.to_pandas(mg.masked(torch.empty(shape)))
        assert back.shape == shape
        assert mg.from_pandas(back).shape == shape


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pd.Series([b"a"], dtype=object), "found dtype object; .*pd.to_numeric"),
        (pd.Series([[1], [2, 3]]), "found dtype object"),
        (pd.Series([1, "a"]), "found dtype object"),
        (
            pd.Series([b"a"], dtype=pd.ArrowDtype(pa.binary())),
            r"found dtype binary\[pyarrow\]; .*column.astype",
        ),
        (
            pd.Series(["2020-01-01"], dtype="datetime64[ns]"),
            r"datetime64\[ns\]; express it as a number.*Timedelta",
        ),
        (pd.Series(["2020-01-01"], dtype="datetime64[ns, UTC]"), "express it as a number"),
        (pd.Series([1], dtype="timedelta64[ns]"), "express it as a number"),
        (pd.Series(pd.period_range("2020", periods=1, freq="D")), "express it as a number"),
        (pd.Series(pd.interval_range(0, 1)), "found dtype interval"),
        (
            pd.Series(np.ones(1, np.longdouble)),
            r"found dtype (float128|longdouble); .*column.astype\('float64'\)",
        ),
    ],
)
def test_columns_without_numbers_are_refused(column: pd.Series, words: str) -> None:
    with pytest.raises(TypeError, match=f"column 'c' must contain .*{words}"):
        mg.from_pandas(pd.DataFrame({"fine": 1, "c": column}))
    with pytest.raises(TypeError, match=r"series 'c' must contain "):
        mg.from_pandas(column.rename("c"))
    with pytest.raises(TypeError, match=r"obj must contain "):
        mg.from_pandas(column.array)


def test_objects_are_never_run() -> None:
    class Bomb:
        def __float__(self) -> float:
            raise AssertionError("from_pandas ran what it read")

        __int__ = __index__ = __array__ = __reduce__ = __float__

    with pytest.raises(TypeError, match=r"found dtype object"):
        mg.from_pandas(pd.Series([Bomb()]))


def test_other_objects_are_refused() -> None:
    for obj in (np.ones(2), [1], torch.ones(1), 3.0, pd.MultiIndex.from_tuples([(1, 2)])):
        with pytest.raises(TypeError, match=rf"obj must be a DataFrame.* found {type(obj).__name__}; "):
            mg.from_pandas(obj)


def test_bad_arguments_are_named() -> None:
    frame = pd.DataFrame({"a": pd.Series([1], dtype="uint32"), "b": pd.Series([1], dtype="int64")})
    with pytest.raises(
        TypeError, match=r"column 'a' \(torch.uint32\) and column 'b' \(torch.int64\) have no common"
    ):
        mg.from_pandas(frame)
    assert_entries(mg.from_pandas(frame, dtype=torch.int64), [[1, 1]], torch.int64)
    with pytest.raises(TypeError, match=r"dtype must be a torch.dtype or None, found <class 'float'>"):
        mg.from_pandas(frame, dtype=float)
    x = poisoned([[1.0, None]])
    with pytest.raises(ValueError, match=r"index must have one label for each of 1 rows, found 2"):
        mg.interop.to_pandas(x, index=pd.Index([1, 2]))
    with pytest.raises(ValueError, match=r"names must be one for each of 2 columns, found 3"):
        mg.interop.to_pandas(x, ["a", "b", "c"])
    with pytest.raises(ValueError, match=r"x must have one dimension"):
        mg.interop.to_pandas(mg.masked(torch.ones(())))
    with pytest.raises(TypeError, match=r"x must be real"):
        mg.interop.to_pandas(x.to(torch.complex64))
