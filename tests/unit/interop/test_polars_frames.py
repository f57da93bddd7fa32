"""polars, through Arrow: null is missing, NaN is not."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
import torch

import maskgrad as mg
from tests.poison import assert_entries
from tests.unit.interop.neighbours import COLUMNS, INTEGERS, as_dtype

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


def test_columns_without_numbers_are_refused() -> None:
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
