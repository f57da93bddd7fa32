"""polars and pyarrow: a vector is taken as it is, through Arrow's interface; a matrix is a table."""

from __future__ import annotations

import polars as pl
import pyarrow as pa

import maskgrad as mg
from tests.ecosystem.truth import assert_operators_refused, assert_refused, garbage


def test_there_and_back() -> None:
    x, _, _ = garbage(6)
    for column in (pl.Series("a", x), pl.DataFrame({"a": x})["a"], pa.array(x), pa.table({"a": x})["a"]):
        assert (column.to_list() if isinstance(column, pl.Series) else column.to_pylist()) == x.tolist()
        assert mg.from_arrow(column).tolist() == x.tolist()
    table, _, _ = garbage(6, 2)
    arrow = mg.interop.to_arrow(table)
    for one in (arrow, pl.from_arrow(arrow)):
        assert mg.from_arrow(one).tolist() == table.tolist()


def test_matrices_refuse() -> None:
    x, _, _ = garbage(6, 2)
    assert_refused(
        r"mg\.interop\.to_arrow\(x\).*pl\.from_arrow",
        lambda: pl.Series("a", x),
        lambda: pa.array(x),
        lambda: pl.DataFrame(x),
    )


def test_arithmetic_refuses() -> None:
    x, _, _ = garbage(4, 2)
    words, v = r"pl\.from_arrow\(mg\.interop\.to_arrow\(x\)\)", x[:, 0]
    numbers = pl.Series("a", [1.0, 2.0, 3.0, 4.0])
    assert_operators_refused(words, v, numbers, pl.DataFrame(numbers))
    assert_refused(words, lambda: v + pl.col("a"))
    assert_refused("MaskedTensor", lambda: pl.col("a") + v)
