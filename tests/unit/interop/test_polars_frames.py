"""polars, through Arrow: null is missing, NaN is not."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
import torch

import maskgrad as mg
from tests.poison import assert_entries, poisoned
from tests.unit.interop.neighbours import COLUMNS, INTEGERS, as_dtype, nan

POLARS = {
    torch.bool: pl.Boolean,
    torch.float32: pl.Float32,
    torch.float64: pl.Float64,
    **{
        d: getattr(pl, str(d).removeprefix("torch.").replace("int", "Int").replace("uI", "UI"))
        for d in INTEGERS
    },
}


def to_polars(x: mg.MaskedTensor) -> Any:
    return pl.from_arrow(mg.interop.to_arrow(x))


@pytest.mark.parametrize("dtype", POLARS, ids=str)
@pytest.mark.parametrize("column", COLUMNS, ids=["full", "some", "nothing", "empty"])
def test_every_dtype_there_and_back(column: list[int | None], dtype: torch.dtype) -> None:
    entries = as_dtype(column, dtype)
    series = pl.Series(entries, dtype=POLARS[dtype])
    x = mg.from_arrow(series)
    assert_entries(x, entries, dtype)
    back = to_polars(x)
    assert back.dtype == series.dtype
    assert back.to_list() == entries


def test_null_and_nan_are_different_things() -> None:
    series = pl.Series([1.0, None, nan])
    x = mg.from_arrow(series)
    assert_entries(x, [1.0, None, nan])
    back = to_polars(x)
    assert back.is_null().to_list() == [False, True, False]
    assert back.is_nan().to_list() == [False, None, True]


def test_slices_chunks_and_arrays() -> None:
    series = pl.Series([True, None, False, True, None, True, False, None, True, False])
    assert_entries(mg.from_arrow(series[3:9]), series[3:9].to_list())
    joined = pl.concat([pl.Series([1, None]), pl.Series([None, 4])], rechunk=False)
    assert joined.n_chunks() == 2
    assert_entries(mg.from_arrow(joined), [1, None, None, 4])
    rows = pl.Series([[1, 2], [3, None], None], dtype=pl.Array(pl.Int64, 2))
    assert_entries(mg.from_arrow(rows), [[1, 2], [3, None], [None, None]])


def test_frames() -> None:
    frame = pl.DataFrame({"a": [1, None], "b": [None, 0.5]})
    x = mg.from_arrow(frame)
    assert_entries(x, [[1.0, None], [None, 0.5]], torch.float64)
    assert_entries(mg.from_arrow(frame, torch.float32), [[1.0, None], [None, 0.5]], torch.float32)
    back = pl.from_arrow(mg.interop.to_arrow(x, ["p", "q"]))
    assert back.to_dict(as_series=False) == {"p": [1.0, None], "q": [None, 0.5]}
    assert to_polars(poisoned([[1.0, None]])).columns == ["0", "1"]
    for shape in ((0, 2), (0, 0)):
        assert mg.from_arrow(to_polars(mg.masked(torch.empty(shape)))).shape == shape


def test_what_holds_no_numbers_is_refused() -> None:
    frame = pl.DataFrame({"fine": [1.0], "name": ["a"]})
    with pytest.raises(TypeError, match=r"column 'name' must contain .*found dtype .*; .*cast"):
        mg.from_arrow(frame)
    for series, words in (
        (pl.Series("s", ["a"]), "found dtype .*string"),
        (pl.Series("s", ["a"], dtype=pl.Categorical), "found dtype dictionary"),
        (pl.Series("s", [["a"]]), "inside its lists, .*found dtype .*string.*; cast the lists"),
        (pl.Series("s", [0], dtype=pl.Date), "found dtype date32.*since some origin"),
        (pl.Series("s", [{"a": 1}]), "found dtype struct"),
    ):
        with pytest.raises(TypeError, match=f"must contain .*{words}|{words}"):
            mg.from_arrow(series)
    for lists in (pl.Series([[1, 2]], dtype=pl.Array(pl.Int8, 2)), pl.Series([[1, 2]])):
        with pytest.raises(TypeError, match=r"column 'v' must contain .*convert lists separately"):
            mg.from_arrow(pl.DataFrame({"v": lists}))
